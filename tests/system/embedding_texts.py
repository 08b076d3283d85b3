"""Two hundred texts of one to 256 tokens and more: prose, questions, code, and eight scripts."""

from __future__ import annotations

import random

SENTENCES = (
    "The harbour was quiet before the ferry came in.",
    "How long does it take to bake sourdough bread at home?",
    "Photosynthesis turns light, water and carbon dioxide into sugar.",
    "She paid the invoice on Tuesday, two days after it was due.",
    "A binary search halves the interval until one element is left.",
    "def mean(values): return sum(values) / len(values)",
    "SELECT name, total FROM orders WHERE total > 100 ORDER BY total DESC;",
    "The orchestra tuned for a minute, then the lights went down.",
    "Volcanic soil is rich in minerals and good for vines.",
    "Is it cheaper to rent or to buy a flat in a small town?",
    "The patch fixes a race between the reader and the writer thread.",
    "Antibiotics do not help against viruses.",
    "Prices rose by 3.2% in March — less than expected.",
    "He learned to swim in a lake when he was forty.",
    "Glaciers move a few centimetres a day; some move metres.",
    "Café, naïve, jalapeño, Zürich, Łódź, İstanbul.",
    "The train to Lyon leaves from platform nine at 18:42.",
    "Please restart the router and wait until the light is green.",
    "Old maps show the river on the other side of the hill.",
    "A vaccine trains the immune system without causing the disease.",
    "東京は日本の首都であり、人口は約千四百万人です。",
    "今日は天気がいいので、公園を散歩しましょう。",
    "コーヒーと紅茶、どちらが好きですか。",
    "我喜欢在周末读书和做饭。",
    "这家餐厅的面条非常好吃，价格也不贵。",
    "人工智能正在改变我们的生活方式。",
    "한국어는 배우기 어렵지만 재미있는 언어입니다.",
    "오늘 저녁에 친구들과 영화를 볼 거예요.",
    "हिन्दी भारत की सबसे अधिक बोली जाने वाली भाषा है।",
    "Быстрая коричневая лиса прыгает через ленивую собаку.",
    "Η γλώσσα αυτή έχει μακρά ιστορία.",
    "اللغة العربية جميلة وغنية.",
)


def two_hundred() -> list[str]:
    """The same on every call. The longest have more than 256 tokens, to be truncated."""
    draw = random.Random(20)
    texts = dict.fromkeys(SENTENCES)
    while len(texts) < 200:
        count = draw.choice((1, 2, 2, 3, 4, 6, 10, 30))
        texts[" ".join(draw.choice(SENTENCES) for _ in range(count))] = None
    return list(texts)
