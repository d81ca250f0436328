"""usage: http_load.py [--url URL] [--clients 1,4,16,64] [--tokens 48] [--requests 64] [--rate R] [--overload N]
                    [--goodput 2000,200]

Measures an HTTP server under load of many clients. Without --url, daemons of the release build serve the sample model;
with it, any server of OpenAI's API is measured, so that two can be compared. Prompts begin differently, so that none is cached.

  closed loop   each of N clients sends a request, reads its stream and repeats: tokens per second of all, time to first
                token (TTFT) and time per later token (TPOT) at the 50th, 90th and 99th percentile
  --rate R      R requests per second at random (Poisson) times, whether or not earlier ones are answered; times count
                from the planned start, not from when a connection was free
  --overload N  N requests of 8 clients that retry at once, on a full queue: the time to their refusal, and the time per
                token of running requests before and meanwhile

Goodput is the number of answers per second whose TTFT and TPOT are at most those of --goodput, in ms.
A single-threaded process on the same machine sends the requests: compare only numbers of one run with each other.
"""
import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import time
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/e2e"))


# Requests that fill the queue of --inferd "--parallel 4 --max-queue 64", and clients that retry when it is full.
OVERLOAD_QUEUE = 80
OVERLOAD_CLIENTS = 8


class Server:
    def __init__(self, url, tokens, limits, sampling=None):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port, self.tokens, self.limits = parts.hostname, parts.port, tokens, limits
        self.random = random.Random(1)
        self.sampling = sampling or {"temperature": 0}

    def request(self):
        start = "%d. " % self.random.randrange(10**9)
        body = json.dumps({
            "messages": [{"role": "user", "content": start + "The film is a story about a young man who " * 3}],
            "max_tokens": self.tokens, "ignore_eos": True, "stream": True,
            **self.sampling,
        })  # fmt: skip
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n" % (self.host, self.port)
        return (head + "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)).encode()

    async def ask(self, planned=None):
        """Returns (status, seconds to the first token, seconds per later token, total seconds)."""
        begin = time.monotonic() if planned is None else planned
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(self.request())
        status = int((await reader.readline()).split()[1])
        first = last = None
        while line := await reader.readline():
            if line.startswith(b"data: {") and re.search(rb'"content": ?"[^"]', line):
                last = time.monotonic()
                first = first or last
        writer.close()
        now = time.monotonic()
        per_token = (last - first) / (self.tokens - 1) if first else None
        return status, first and first - begin, per_token, now - begin


def percentiles(values):
    values = sorted(v for v in values if v is not None)
    if not values:
        return "-"
    at = lambda share: 1e3 * values[min(len(values) - 1, int(share * len(values)))]  # noqa: E731
    return " / ".join("%.1f" % at(share) for share in (0.5, 0.9, 0.99))


def row(name, results, seconds, server):
    good = [r for r in results if r[0] == 200]
    in_time = [r for r in good if r[1] and 1e3 * r[1] <= server.limits[0] and 1e3 * r[2] <= server.limits[1]]
    print("| %s | %d | %d | %.0f | %.1f | %s | %s |" % (
        name, len(good), len(results) - len(good), len(good) * server.tokens / seconds, len(in_time) / seconds,
        percentiles([r[1] for r in good]), percentiles([r[2] for r in good])), flush=True)  # fmt: skip


async def closed(server, clients, requests):
    left = [max(requests, 2 * clients)]
    results = []

    async def client():
        while left[0] > 0:
            left[0] -= 1
            results.append(await server.ask())

    begin = time.monotonic()
    await asyncio.gather(*(client() for _ in range(clients)))
    row("%d clients" % clients, results, time.monotonic() - begin, server)


async def poisson(server, rate, requests):
    gaps = random.Random(2)
    begin = planned = time.monotonic()
    tasks = []
    for _ in range(requests):
        planned += gaps.expovariate(rate)
        await asyncio.sleep(max(0, planned - time.monotonic()))
        tasks.append(asyncio.create_task(server.ask(planned)))
    results = await asyncio.gather(*tasks)
    row("%g a second" % rate, results, time.monotonic() - begin, server)


async def overload(server, count):
    before = [r[2] for r in await asyncio.gather(*(server.ask() for _ in range(4)))]
    running = [asyncio.create_task(server.ask()) for _ in range(4)]
    await asyncio.sleep(0.05)
    waiting = [asyncio.create_task(server.ask()) for _ in range(OVERLOAD_QUEUE)]
    results = []

    async def insist():  # retries as soon as it is refused
        while len(results) < count:
            results.append(await server.ask())

    await asyncio.gather(*(insist() for _ in range(OVERLOAD_CLIENTS)))
    meanwhile = [r[2] for r in await asyncio.gather(*running)]
    await asyncio.gather(*waiting)
    refused = [r[3] for r in results if r[0] in (429, 503)]
    print("\n%d requests on a full queue: %d answered, %d refused, after %s ms (p50 / p90 / p99, connecting included)" % (
        len(results), sum(r[0] == 200 for r in results), len(refused), percentiles(refused)))  # fmt: skip
    print("time per token of what ran: %.1f ms before, %.1f ms meanwhile" % tuple(
        1e3 * statistics.median(v for v in values if v) for values in (before, meanwhile)))  # fmt: skip


async def main(options, url):
    server = Server(url, options.tokens, options.goodput)
    await server.ask()  # warms up
    print("| load | answered | refused | tokens/s | goodput/s | TTFT ms p50 / p90 / p99 | TPOT ms p50 / p90 / p99 |")
    print("|---|---|---|---|---|---|---|")
    for clients in options.clients:
        await closed(server, clients, options.requests)
    if options.rate:
        await poisson(server, options.rate, options.requests)
    if options.overload:
        await overload(server, options.overload)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",") if n], default=[1, 4, 16, 64])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--overload", type=int)
    parser.add_argument("--goodput", type=lambda text: [float(n) for n in text.split(",")], default=[2000, 200])
    parser.add_argument("--inferd", default="", help="options of inferd, as one text (default: --parallel 64)")
    options = parser.parse_args()
    if options.url:
        asyncio.run(main(options, options.url))
        sys.exit(0)
    import daemons

    own = daemons.Daemons()
    try:
        own.start_weightd()
        own.start_inferd("--http", "127.0.0.1:0", "--context", "512", *(options.inferd or "--parallel 64").split())
        port = re.search(r"over HTTP to 127\.0\.0\.1:(\d+)", own.inferd.text()).group(1)
        asyncio.run(main(options, "http://127.0.0.1:" + port))
    finally:
        own.close()
