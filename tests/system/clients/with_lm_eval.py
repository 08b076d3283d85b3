"""Runs in the clients' own environment: lm-eval's local-completions on two tiny local tasks.

Arguments: the server's address, the model, and the directory of the tasks. Prints one JSON object: accuracy
of the log-likelihood task, the log-likelihoods themselves, and the texts of the other.
"""

from __future__ import annotations

import json
import sys

from lm_eval import simple_evaluate
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager


def main() -> None:
    url, model, tasks = sys.argv[1:4]
    client = LocalCompletionsAPI(
        base_url=f"{url}/v1/completions",
        model=model,
        tokenizer_backend="remote",
        max_length=1024,
        num_concurrent=1,
    )
    found = simple_evaluate(
        model=client,
        tasks=["stretto_choice", "stretto_generate"],
        task_manager=TaskManager(include_path=tasks, include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    choices = found["samples"]["stretto_choice"]
    print(
        json.dumps(
            {
                "accuracy": found["results"]["stretto_choice"]["acc,none"],
                "answers": [[float(answer[0]) for answer in sample["filtered_resps"]] for sample in choices],
                "texts": [sample["filtered_resps"][0] for sample in found["samples"]["stretto_generate"]],
            }
        )
    )


main()
