"""What the engine itself costs for each token: many streams over a scripted graph, whose own time is taken off.

    python bench/serve_engine.py [--streams 64] [--slots 64] [--tokens 200] [--prompt 32] [--vocab 262]
                                 [--temperature 0] [--readers asyncio|threads] [--runs 3] [--json]

Every stream generates `tokens` tokens and is read by a reader of its own, as a server does. The figure is the process's
CPU time, readers and all, less the time inside the graph, over all tokens of all streams; wall time beside it. Also a
greedy choice from logits of 151,936 tokens, less `argmax` alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import threading
import time
from typing import Any

import numpy as np

from hf2q.serve.engine import Engine
from hf2q.serve.events import GenerateRequest
from hf2q.serve.handle import Handle
from hf2q.serve.sampling import Sampler, SamplingParams
from hf2q.testing.scripted import scripted_model

LARGE = 151_936
"""The vocabulary of Qwen 3."""


class Quick:
    """Logits that are there already: the next token is the row's position."""

    def __init__(self, graph: Any, vocab: int) -> None:
        self._graph, self.n_vocab = graph, vocab
        self.seconds = 0.0
        self._logits = np.zeros((64, 1, vocab), np.float32)
        self._logits[:, :, 65] = 9.0

    def new_cache(self) -> Any:
        return self._graph.new_cache()

    def hidden(self, ids: Any, caches: Any) -> Any:
        started = time.perf_counter()
        for cache in caches:
            cache.position += ids.shape[1]
        self.seconds += time.perf_counter() - started
        return np.zeros((ids.shape[0], ids.shape[1], 1), np.float32)

    def head(self, hidden: Any) -> Any:
        return self._logits[: hidden.shape[0]]


async def read(handle: Handle) -> int:
    return sum([1 async for _ in handle])


def measure(wanted: argparse.Namespace) -> tuple[float, float]:
    """CPU and wall seconds for each token, without the graph's."""
    model = scripted_model("")
    graph = Quick(model._graph, wanted.vocab)
    model._graph, model.n_vocab = graph, wanted.vocab
    requests = [
        GenerateRequest(
            prompt_ids=tuple(n % 200 for n in range(stream, stream + wanted.prompt)),
            sampling=SamplingParams(temperature=wanted.temperature, seed=stream),
            max_tokens=wanted.tokens,
        )
        for stream in range(wanted.streams)
    ]
    with Engine(model, slots=wanted.slots, queue_capacity=wanted.streams) as engine:
        engine.wait_ready()
        graph.seconds, cpu, wall = 0.0, time.process_time(), time.perf_counter()
        if wanted.readers == "asyncio":

            async def all_of_them() -> None:
                await asyncio.gather(*(read(handle) for handle in engine.submit_many(requests)))

            asyncio.run(all_of_them())
        else:
            readers = [threading.Thread(target=list, args=(handle,)) for handle in engine.submit_many(requests)]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    count = wanted.streams * wanted.tokens
    return (cpu - graph.seconds) / count, (wall - graph.seconds) / count


def greedy() -> float:
    """Seconds that a greedy choice takes more than `argmax`."""
    logits = np.random.RandomState(0).standard_normal(LARGE).astype(np.float32)
    sampler = Sampler(SamplingParams(), (), LARGE, suppressed=(5, 6))

    def best(work: Any) -> float:
        times = []
        for _ in range(20):
            started = time.perf_counter()
            for _ in range(50):
                work()
            times.append((time.perf_counter() - started) / 50)
        return min(times)

    return best(lambda: sampler.sample(logits)) - best(logits.argmax)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, value in (("streams", 64), ("slots", 64), ("tokens", 200), ("prompt", 32), ("vocab", 262), ("runs", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--readers", choices=["asyncio", "threads"], default="asyncio")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    figures = [measure(wanted) for _ in range(wanted.runs)]
    told = {
        "streams": wanted.streams,
        "cpu_us_per_token": round(1e6 * statistics.median(cpu for cpu, _ in figures), 1),
        "wall_us_per_token": round(1e6 * statistics.median(wall for _, wall in figures), 1),
        "greedy_us_beyond_argmax": round(1e6 * greedy(), 2),
    }
    print(json.dumps(told) if wanted.json else "\n".join(f"{key:24} {value}" for key, value in told.items()))


if __name__ == "__main__":
    main()
