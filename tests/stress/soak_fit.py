"""Growth of a process' resources: samples by life, and the slope common to all lives with its standard error."""
import os
import re

from kill_service import fd_count

# Growth that fails the run: a slope per hour above which it must not be, and what a short run may grow by all the same.
MARKS = {"memory KiB": (4096, 6144), "shared KiB": (4096, 6144), "descriptors": (2, 3), "threads": (2, 3)}
WARM = 0.25  # share of a life's samples that is left out: caches fill
FEWEST = 8  # samples of a life
SURE = 3.0  # standard errors


def usage(pid):
    """The resources of a process by the names of MARKS."""
    with open(f"/proc/{pid}/status") as file:
        fields = dict(re.findall(r"(\w+):\s+(\d+)", file.read()))
    return {
        "memory KiB": int(fields["RssAnon"]), "shared KiB": int(fields["RssShmem"]), "descriptors": fd_count(pid),
        "threads": int(fields["Threads"]),
    }  # fmt: skip


def slope_of(lives):
    """Fits one slope to all lives, each with its own mean. `lives`: lists of (seconds, value). Returns (slope and standard
    error per hour, hours, samples), or None for too few. The error counts neighbouring samples as the less new the more
    alike their residuals are (first-order autocorrelation)."""
    points, pairs, spans = [], [], 0.0
    for life in lives:
        life = life[int(WARM * len(life)) :]
        if len(life) < FEWEST:
            continue
        mean_x, mean_y = (sum(column) / len(life) for column in zip(*life))
        centred = [((x - mean_x) / 3600, y - mean_y) for x, y in life]
        pairs += [(len(points) + i, len(points) + i + 1) for i in range(len(centred) - 1)]
        points += centred
        spans = max(spans, centred[-1][0] - centred[0][0])
        lives_used = len(pairs) and len(points) - len(pairs)
    if not points:
        return None
    square = sum(x * x for x, _ in points)
    slope = sum(x * y for x, y in points) / square
    rest = [y - slope * x for x, y in points]
    total = sum(r * r for r in rest)
    error = (total / max(1, len(points) - lives_used - 1) / square) ** 0.5
    alike = max(0.0, min(0.95, sum(rest[a] * rest[b] for a, b in pairs) / total)) if total > 0 else 0.0
    return slope, error * ((1 + alike) / (1 - alike)) ** 0.5, spans, len(points)


def fits(samples):
    """Rows (process, resource, slope, error, hours, samples, mark, failed). `samples`: (process, life, seconds, usage)."""
    rows = []
    for process in sorted({sample[0] for sample in samples}):
        for name, (per_hour, at_all) in MARKS.items():
            lives = {}
            for who, life, seconds, used in samples:
                if who == process:
                    lives.setdefault(life, []).append((seconds, used[name]))
            fit = slope_of(list(lives.values()))
            if fit is not None:
                slope, error, hours, count = fit
                mark = max(per_hour, at_all / hours)
                rows.append((process, name, slope, error, hours, count, mark, slope - SURE * error > mark))
    return rows


def shared_names():
    return {name for name in os.listdir("/dev/shm") if "sluice" in name}
