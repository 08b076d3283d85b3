"""Every claim of this project that a command can verify, by area. `tools/prove.py` runs them.

A claim's command exits 0 if it holds. Claims about speed need an otherwise idle machine; `gpu-…` claims need
an NVIDIA H200 and are run by hand (benchmarks/gpu), so they are not in this table.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

PYTHON = sys.executable


@dataclass(frozen=True, slots=True)
class Proof:
    name: str
    claim: str
    command: tuple[str, ...]
    json_flag: str = ""  # the option that names the file for its figures
    environment: tuple[tuple[str, str], ...] = ()


def by_tests(name: str, claim: str, *paths: str, **environment: str) -> Proof:
    command = (PYTHON, "-m", "pytest", "-q", "-n", "2", *paths)
    return Proof(name, claim, command, environment=tuple(environment.items()))


def by_script(name: str, claim: str, *arguments: str) -> Proof:
    """A script of ours that takes --json."""
    return Proof(name, claim, (PYTHON, *arguments), "--json")


CORE = (
    by_script(
        "core-simulation",
        "1,000,000 ticks violate no invariant and reach every coverage property",
        *("-m", "stretto.testing.simulate", "--ticks", "1000000", "--workers", "2"),
    ),
    by_tests(
        "core-determinism",
        "the same seed gives byte-identical traces, also under another PYTHONHASHSEED",
        "tests/simulation/test_simulation.py",
    ),
    by_tests(
        "core-defects", "planted defects are caught by the simulator", "tests/simulation/test_defects.py"
    ),
    by_tests(
        "core-machines",
        "state machines at 200 examples × 50 steps, each caught by two planted defects",
        "tests/simulation/machines",
        STRETTO_PROVE="1",
    ),
    by_tests(
        "core-rules",
        "admission bound, preemptions, gap guarantee, fairness, golden trace",
        "tests/unit/core",
        "tests/simulation/test_rules.py",
        "tests/simulation/test_behaviour.py",
    ),
    by_script(
        "core-speed",
        "plan + commit at 256 generating slots within 500 µs, linear to 1,024",
        *("benchmarks/scheduler.py", "--check"),
    ),
    Proof(
        "core-layers",
        "core imports only the standard library and stretto.errors, and does no I/O",
        (PYTHON, "tools/check_layers.py"),
    ),
)

LLAMACPP = (
    by_tests(
        "llamacpp-contract",
        "one contract suite for llama.cpp on every tiny model kind, simulated and torch backends",
        "tests/contract",
    ),
    by_script(
        "llamacpp-parity",
        "SmolLM2, 50 prompts: greedy tokens equal a plain llama.cpp loop under every setting",
        *("-m", "tests.system.parity", "--full", "--check", "--workers", "2"),
    ),
    by_script(
        "llamacpp-speed",
        "0.95 of a bare llama_decode loop at 1 to 16 slots, 0.9 with gaps, idle CPU below 1 %",
        *("benchmarks/llamacpp.py", "--check"),
    ),
    by_script(
        "llamacpp-sampling",
        "sampling below 10 % of a tick at 151,936 tokens and 16 slots",
        *("benchmarks/sampling.py", "--check"),
    ),
    by_tests(
        "llamacpp-sdk",
        "the SDK with a real model: cache hits, cancelled requests, NaN logits, many threads",
        "tests/system/test_sdk.py",
        "tests/system/test_bad_numbers.py",
    ),
    by_tests(
        "llamacpp-bad-files",
        "500 mutated GGUFs never crash the caller",
        "tests/system/security/test_gguf_fuzz.py",
        STRETTO_PROVE="1",
    ),
)

CLIENT = (
    by_script(
        "client-batcher",
        "calls saved, time to the first token, added waits and frames per token, from counted frames",
        *("benchmarks/batcher.py", "--check"),
    ),
    by_script(
        "client-kills",
        "25 × kill -9 under 16 streams of SmolLM2, a killed parent, 10 × SIGSTOP: nothing is lost or leaked",
        *("-m", "tests.system.process.kill_worker", "--model", "default", "--tokens", "32"),
    ),
    by_tests("client-process", "mixed batches, tokens, uids, signals", "tests/system/process"),
    by_script(
        "client-slow-reader",
        "a client that reads one token per second slows no other stream, and eight of them stall none",
        *("benchmarks/slow_reader.py", "--check"),
    ),
    by_script(
        "client-frames",
        "a million mutated frames: no crash, no hang, no memory growth",
        *("-m", "tests.system.security.frame_fuzz", "--count", "1000000"),
    ),
    by_script(
        "client-simulation",
        "registry, batcher and supervisor under broken wires and dying workers: each request ends once",
        *("-m", "stretto.testing.client_simulate", "--seeds", "1000"),
    ),
)

SERVER = (
    by_tests(
        "server-access",
        "every route × {no key, wrong key, right key}, 40 hosts and origins, every limit",
        "tests/server/operations/test_access.py",
        "tests/server/operations/test_parts.py",
        "tests/server/operations/test_cli.py",
    ),
    by_tests(
        "server-drain",
        "10 SIGTERM drains lose no running request; 200 disconnecting clients leak nothing",
        "tests/server/operations/test_drain.py",
        STRETTO_PROVE="1",
    ),
    by_tests(
        "server-clients",
        "OpenAI's and Anthropic's own clients against SmolLM2; every curl example of the docs",
        "tests/server/test_smollm2.py",
        "tests/server/test_readme.py",
        "tests/server/test_chat.py",
        "tests/server/test_responses.py",
        "tests/server/test_messages.py",
    ),
    by_tests(
        "server-bad-inputs",
        "a thousand invalid inputs, each rejected with its exact status and code",
        "tests/server/test_bad_inputs.py",
    ),
    Proof(
        "server-document",
        "schemathesis over the OpenAPI document, NUL included: no 5xx, valid replies, bad data rejected",
        (PYTHON, "-m", "tests.server.fuzz", "--examples", "100", "--backend", "simulated"),
    ),
    by_script(
        "server-schemas",
        "100 schemas × SmolLM2 at temperature 1: 95 complete within 512 tokens, all valid; 50 forced calls",
        *("-m", "tests.server.schemas100", "--check"),
    ),
    by_tests(
        "server-page",
        "the page in Chromium: a chat streams, four requests fill four lanes, the console has no errors",
        "tests/server/browser",
        STRETTO_PROVE="1",
    ),
    by_script(
        "server-gateway",
        "at most 60 µs of the server's CPU per token at 64 streams, and no more at 256",
        *("benchmarks/gateway.py", "--check"),
    ),
    by_script(
        "server-soak",
        "half an hour at 120 % load, 30 % of clients leaving: memory and descriptors do not grow",
        *("benchmarks/soak.py", "--check"),
    ),
)

EMBEDDINGS = (
    by_tests(
        "embeddings-right",
        "200 texts against transformers, packed and alone, cancelled, reranked, through the openai client",
        "tests/system/test_embeddings.py",
        "tests/system/test_embeddings_rpc.py",
        "tests/system/test_embeddings_http.py",
    ),
    by_script(
        "embeddings-speed",
        "1,000 texts at least as fast as the best one-at-a-time way; a lone text waits two batches at most",
        *("benchmarks/embeddings.py", "--check"),
    ),
)

TORCH = (
    by_tests(
        "torch-logits", "four families equal transformers in float32 to 1e-4", "tests/unit/backends/torch"
    ),
    by_script(
        "torch-parity",
        "SmolLM2 on torch gives llama.cpp's tokens on 18 of 20 prompts",
        *("-m", "tests.system.torch_parity", "--check"),
    ),
)

SPECULATION = (
    by_script(
        "speculation-exact",
        "50 prompts × drafters × 1, 4, 16 slots × cache policies: texts of plain decoding; 10⁶ samples alike",
        *("benchmarks/speculation.py", "--parts", "exact", "--check"),
    ),
    by_script(
        "speculation-speed",
        "lookup at 0.98 of plain decoding or more for 1 to 8 users, edits of one user at 1.6",
        *("benchmarks/speculation.py", "--parts", "speed", "--rounds", "8", "--check"),
    ),
    by_script(
        "speculation-peer",
        "with lookup drafts in both, llama-server is not faster for 1 to 8 users",
        *("benchmarks/speculation.py", "--parts", "peer", "--check"),
    ),
    by_script(
        "speculation-pair",
        "a model with its draft model at 0.98 or more, edits of one user at 1.3",
        *("benchmarks/pair.py", "--check"),
    ),
)

ADAPTERS_AND_RANKS = (
    by_script(
        "adapters",
        "8 requests on 4 adapters write what each writes alone; waits and throughput of several adapters",
        *("benchmarks/lora.py", "--check"),
    ),
    by_script(
        "tensor-parallel",
        "two gloo ranks write the tokens of one; 20 killed ranks lose nothing that had not begun",
        *("benchmarks/tensor_parallel.py", "--check"),
    ),
)

CLUSTER = (
    by_script(
        "cluster-on-ray",
        "reuse, shares, overhead, 50 killed replicas and 20 gates, 1,000 cancels, 1 → 4 → 1 replicas on Ray",
        *("benchmarks/cluster.py", "--check"),
    ),
    by_script(
        "cluster-laws",
        "400 seeds of clusters with deaths, joins, cancels and scaling break no law",
        *("-m", "stretto.testing.cluster.simulate", "laws", "--seeds", "400", "--workers", "2"),
    ),
    by_script(
        "cluster-simulation",
        "64 replicas and a million requests: each ends once, no law is broken",
        *("-m", "stretto.testing.cluster.simulate", "large", "--check", "--requests", "1000000"),
    ),
    by_tests("cluster-defects", "planted defects of clusters are caught", "tests/simulation/test_cluster.py"),
)

SECURITY = (
    by_script(
        "attacks",
        "no known attack costs a well-behaved client more than a second, or memory that stays",
        *("benchmarks/attacks.py", "--check"),
    ),
    by_script(
        "fuzzed-requests",
        "100,000 mutated HTTP requests: each is answered or its connection closed",
        *("benchmarks/fuzz_http.py", "--check"),
    ),
    by_script(
        "fuzzed-grammars",
        "10,000 schemas, expressions, grammars and templates replace no process and delay no neighbour",
        *("benchmarks/fuzz_grammars.py", "--check"),
    ),
    by_script(
        "fuzzed-media",
        "2,000 mutated pictures and sounds: each is answered, and a text client notices nothing",
        *("benchmarks/fuzz_media.py", "--check"),
    ),
)

FEATURES = (
    by_script(
        "structured",
        "guided answers are complete and valid, and what a guided token costs",
        *("benchmarks/structured.py", "--check"),
    ),
    by_script(
        "media",
        "pictures: the same answers alone and shared, gaps of the streams beside them, llama-server's times",
        *("benchmarks/media.py", "--check"),
    ),
    by_script(
        "auto",
        "`auto` reaches 0.97 of the best fixed choice",
        *("-m", "benchmarks.auto", "--check"),
    ),
    by_script(
        "multi-turn-parity",
        "greedy text is identical under every cache policy and layout",
        *("-m", "benchmarks.parity", "--check"),
    ),
    by_script("telemetry", "telemetry costs at most 2 % per token", *("benchmarks/telemetry.py", "--check")),
    by_script(
        "cpu-share",
        "server and text take at most 6 % of the processors beside eight users",
        *("benchmarks/cpu_share.py", "--check"),
    ),
)

PEERS = (
    by_script(
        "peers",
        "steady, stall, burst, turns, trace, tenants and mixed against llama-server",
        *("benchmarks/compare.py", "--check"),
    ),
)

ALL = (
    *CORE,
    *LLAMACPP,
    *CLIENT,
    *SERVER,
    *EMBEDDINGS,
    *TORCH,
    *SPECULATION,
    *ADAPTERS_AND_RANKS,
    *CLUSTER,
    *SECURITY,
    *FEATURES,
    *PEERS,
)
