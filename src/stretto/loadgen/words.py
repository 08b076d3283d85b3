"""Generates unique texts with a given number of tokens.

Texts are drawn from common words with a seed that contains the run's id: two runs never share a prefix, so
that no cache is measured by accident. Lengths are counted with the server's `/tokenize` if it has one, else
estimated: each of these words is one token, including the space, in common vocabularies.
"""

from __future__ import annotations

import random
from collections.abc import Callable

Count = Callable[[str], int]

_WORDS = """
about above across action after again against age air all along also always among and animal another answer
any area arm around art back bad ball bank base because become bed been before began behind being believe
below best better between big bird black blood blue board boat body book both bottom box boy bread bring
brother brown build building business but call came can capital car care carry case cat cause center century
certain chance change check child children city class clean clear close cold color come common company
complete control cool corner cost could country course cover cross cut dark data day dead deal deep degree
did different direct direction distance doctor dog done door down draw dream drive dry during each early
earth east easy eat edge eight end enough even ever every example eye face fact fall family far farm fast
father feel feet few field fight figure final find fine finger finish fire first fish five floor flower fly
follow food foot force form forward four free fresh friend from front full future game garden gave general
girl give glass gold gone good got government great green ground group grow had half hand happy hard has
have head hear heart heat heavy help her here high him his history hold home hope horse hot hour house how
human hundred idea important inside island job just keep kind king knew know land language large last late
laugh law lead learn leave left leg less let letter level life light like line list little live long look
lost love low machine made main make man many map mark market matter may mean measure men might mile milk
mind minute money month moon more morning most mother mountain mouth move much music must name nation nature
near need never new next night nine north nothing now number off office often oil old once one only open
order other our out over own page paper part party past pay people person picture piece place plan plant
play point poor power present price problem process public put question quick rain ran reach read ready real
reason record red remember rest result rich right ring river road rock room round rule run said same saw say
school science sea season seat second see send sense serve set seven several shape ship short should show
side sign silver simple since sing sister six size skin sky sleep slow small snow social some son song soon
sound south space speak special spring stand star start state station stay step still stone stop store story
street strong student study such summer sun sure system table take talk team tell ten test than that them
then there these thing think third this those thousand three through time today together told too took top
total town trade train travel tree true try turn two under until use usual very view visit voice wait walk
wall want war warm was watch water wave way week weight well went were west what wheel when where which
while white who whole why wide wild will wind window winter wish with woman wood word work world would write
wrong year yellow yes young
"""
WORDS = tuple(_WORDS.split())


class Texts:
    """Texts of one run. Equal names give equal texts."""

    def __init__(self, run_id: str, count: Count | None = None) -> None:
        self._run_id = run_id
        self._count = count
        self._made: dict[tuple[str, int], str] = {}  # traces repeat blocks

    def dice(self, name: str) -> random.Random:
        """Random generator of this run, for texts and arrival times."""
        return random.Random(f"{self._run_id}/{name}")  # noqa: S311 - no secrets here

    def make(self, name: str, tokens: int) -> str:
        """A text with this many tokens; exact if the server can count."""
        key = (name, tokens)
        if key not in self._made:
            self._made[key] = self._draw(name, tokens)
        return self._made[key]

    def _draw(self, name: str, tokens: int) -> str:
        drawn = self.dice(name)
        words = drawn.choices(WORDS, k=max(1, tokens))
        if self._count is None:
            return " ".join(words)
        for _ in range(4):
            counted = self._count(" ".join(words))
            if counted == tokens:
                break
            wanted = max(1, round(len(words) * tokens / max(1, counted)))
            if wanted == len(words):  # off by less than one word: try one more or less
                wanted = max(1, len(words) + (1 if counted < tokens else -1))
            words = words[:wanted] + drawn.choices(WORDS, k=max(0, wanted - len(words)))
        return " ".join(words)
