#!/usr/bin/python3
"""Writes deploy/config/weightd.toml and inferd.toml from the daemons' --help: every option with its help and default. The
values that the systemd units need are set.

usage: make_configs.py [--check] [BIN]     BIN: folder of the built daemons (build/release/bin)
--check: writes nothing; exit 1, naming the file, if a file differs from what would be written.
"""
import os
import re
import subprocess
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Options that do not belong in files.
SKIPPED = {"help", "config", "version", "check-config"}
# Settings that the units in deploy/systemd rely on.
SET = {
    "weightd": {
        "socket": '"/run/weightd/weightd.sock"',
        "pack": '["/var/lib/sluice/packs/model"]',
        "allow-group": '["sluice"]',
    },
    "inferd": {
        "pack": '"/var/lib/sluice/packs/model"',
        "weightd": '"/run/weightd/weightd.sock"',
        "listen": '["unix:/run/inferd/inferd.sock"]',
        "admin": '["unix:/run/inferd/inferd-admin.sock"]',
        "allow-group": '["sluice"]',
    },
}
# Example values where --help shows no default.
EXAMPLES = {
    "allow-uid": '["alice", 1000]',
    "context": "8192",
    "cpu-threads": "4",
    "device-budget": '"8GiB"',
    "drafts": "4",
    "dram-budget": '"16GiB"',
    "http": '["127.0.0.1:8080"]',
    "http-cors": '["https://ui.example"]',
    "http-keys": '"/etc/sluice/keys"',
    "http-tls-certificate": '"/etc/sluice/tls/chain.pem"',
    "http-tls-key": '"/etc/sluice/tls/key.pem"',
    "kv-budget": '"2GiB"',
    "link-gbps": "16",
    "link-latency-us": "10",
    "metrics": {"weightd": '"127.0.0.1:9400"', "inferd": '"127.0.0.1:9401"'},
    "parent-lifeline": "3",
    "prefix-file": '"/var/cache/inferd/prefixes"',
    "scrub-rate": '"64MiB"',
    "session-quota": '"8GiB"',
    "sparsity": '"up"',
    "sparsity-scope": '"expert"',
    "sparsity-target": "0.8",
    "sparsity-threshold": "0.25",
    "max-prefill-chunk": "2048",
    "threads": "8",
    "tls-certificate": '"/etc/sluice/tls/chain.pem"',
    "tls-client-ca": '"/etc/sluice/tls/clients.pem"',
    "tls-key": '"/etc/sluice/tls/key.pem"',
}


def options(program, bin_dir):
    """Returns (name, takes a list, default or None, help) of each option."""
    text = subprocess.run([os.path.join(bin_dir, program), "--help"], check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        match = re.match(r"  (?:-h,)?--([a-z0-9-]+)(?:=(\S+))?( \.\.\.)?(?: REQUIRED)?\s+(\S.*)$", line)
        if match and match.group(1) not in SKIPPED:
            yield match.group(1), bool(match.group(3)), match.group(2), match.group(4)


def value_of(program, name, is_list, default):
    if default is not None:
        return default if re.fullmatch(r"[1-9][0-9]*|0", default) else '"%s"' % default
    example = EXAMPLES.get(name, '["..."]' if is_list else '"..."')
    return example[program] if isinstance(example, dict) else example


def config(program, bin_dir):
    lines = textwrap.wrap(
        "Every option of %s, as its flags are named. What has a # in front is not set: where --help shows a "
        "default it stands here, else an example. Made by deploy/lib/make_configs.py." % program,
        100,
        initial_indent="# ",
        subsequent_indent="# ",
    )
    for name, is_list, default, text in options(program, bin_dir):
        lines.append("")
        lines += textwrap.wrap(text + ".", 100, initial_indent="# ", subsequent_indent="# ")
        if name in SET[program]:
            lines.append("%s = %s" % (name, SET[program][name]))
        else:
            lines.append("# %s = %s" % (name, value_of(program, name, is_list, default)))
    return "\n".join(lines) + "\n"


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    bin_dir = arguments[0] if arguments else os.path.join(ROOT, "build/release/bin")
    stale = 0
    for program in SET:
        path = os.path.join(ROOT, "deploy/config", program + ".toml")
        made = config(program, bin_dir)
        if "--check" not in sys.argv:
            with open(path, "w") as file:
                file.write(made)
            continue
        with open(path) as file:
            if file.read() != made:
                print("%s does not name today's options: run deploy/lib/make_configs.py" % path, file=sys.stderr)
                stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
