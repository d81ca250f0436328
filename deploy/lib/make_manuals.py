#!/usr/bin/python3
"""Writes man pages and the completions of bash and zsh from the programs' --help.

usage: make_manuals.py OUT [BIN]     BIN: folder of the built programs (build/release/bin)
OUT gets man/*.1 and *.8, sluice.bash and _sluice.
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DAEMONS = ("weightd", "inferd")
# Help words after which an argument is a file or folder; others are recognized by the first word of their help.
FILES = re.compile(r"(FILE|DIR|PACK|FOLDER|PATH|[Ff]older|TOML file|[Ff]ile )")


class Help:
    """A program's help: its description, usage, and sections of (syntax, meaning)."""

    def __init__(self, words):
        text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        head, _, rest = text.partition("\nUsage: ")
        self.summary = " ".join(head.split())
        self.usage, _, rest = rest.partition("\n")
        self.sections = []
        for line in rest.splitlines():
            entry = re.match(r"  (\S.*?)(?:\s{2,}(.*))?$", line)
            if re.match(r"\S.*:$", line):
                self.sections.append((line[:-1], []))
            elif entry and self.sections:
                self.sections[-1][1].append((entry.group(1), entry.group(2) or ""))
            elif line.startswith("    ") and self.sections and self.sections[-1][1]:
                typed, meaning = self.sections[-1][1][-1]
                self.sections[-1][1][-1] = (typed, (meaning + " " + line.strip()).strip())

    def options(self):
        """Returns {option: its help} of all sections."""
        found = {}
        for _, entries in self.sections:
            for typed, meaning in entries:
                for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", typed):
                    found[option] = meaning
        return found


def sluice_version(programs):
    sluice = os.path.join(programs, "sluice")
    return subprocess.run([sluice, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]


def sluice_helps(programs):
    """Returns sluice's commands as [(name, summary)], and {name: its Help} with every option."""
    sluice = os.path.join(programs, "sluice")
    text = subprocess.run([sluice, "--help"], check=True, capture_output=True, text=True).stdout
    commands = re.findall(r"^  ([a-z]+)\s+(\S.*)$", text, re.M)
    helps = {}
    for name, summary in commands:
        short = Help([sluice, name, "--help"])
        helps[name] = Help([sluice, name, "--help-all"]) if "--help-all" in short.options() else short
        helps[name].summary = summary
    return commands, helps


def daemon_help(programs, name):
    return Help([os.path.join(programs, name), "--help"])


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in ".'" else text


def manual(name, section, text, version, more=""):
    lines = [
        '.TH "%s" %d "" "sluice %s" "Sluice"' % (name.upper(), section, version),
        ".SH NAME", roff(name) + " \\- " + roff(text.summary.rstrip(".").removeprefix(name + ": ")),
        ".SH SYNOPSIS", ".B " + roff(text.usage),
    ]  # fmt: skip
    for title, entries in text.sections:
        lines.append('.SH "%s"' % roff(title.upper()))
        for typed, meaning in entries:
            lines += [".TP", ".B " + roff(typed), roff(meaning) or "\\&"]
    return "\n".join(lines) + "\n" + more


def overview(commands, version):
    lines = [
        '.TH "SLUICE" 1 "" "sluice %s" "Sluice"' % version,
        ".SH NAME", "sluice \\- Mixture\\-of\\-Experts models larger than memory, from two local daemons",
        ".SH SYNOPSIS", ".B sluice", ".I COMMAND", "[options]", ".SH COMMANDS",
    ]  # fmt: skip
    for name, summary in commands:
        lines += [".TP", ".BR sluice\\-%s (1)" % name, roff(summary)]
    lines += [
        ".SH EXIT STATUS", "0 done, 1 failed, 2 wrong usage.",
        ".SH SEE ALSO", ".BR weightd (8), " ".BR inferd (8),", "/usr/share/doc/sluice",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def bash_completion(commands, helps):
    cases = ['    %s) options="%s" ;;' % (name, " ".join(sorted(helps[name].options()))) for name, _ in commands]
    return """# bash completion of sluice, made from its --help.
_sluice() {
  local word=${COMP_WORDS[COMP_CWORD]} options=
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "%s --help --version" -- "$word"))
    return
  fi
  case ${COMP_WORDS[1]} in
%s
  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  else
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}
complete -F _sluice sluice
""" % (" ".join(name for name, _ in commands), "\n".join(cases))


def zsh_completion(commands, helps):
    def quoted(text):
        return re.sub(r"([\[\]:\\])", r"\\\1", text).replace("'", "'\\''")

    lines = ["#compdef sluice", "# Made from sluice's --help.", "_sluice() {", "  local -a commands"]
    lines.append("  commands=(" + " ".join("'%s:%s'" % (name, quoted(summary)) for name, summary in commands) + ")")
    lines += ["  if (( CURRENT == 2 )); then", "    _describe command commands", "    return", "  fi", "  local command=$words[2]",
              "  shift words", "  (( CURRENT-- ))", "  case $command in"]  # fmt: skip
    for name, _ in commands:
        specs = []
        for option, meaning in sorted(helps[name].options().items()):
            value = "" if option in ("-h", "--help", "--help-all", "--json") else ":value:_files" if FILES.search(meaning) else ":value:"
            specs.append("'*%s[%s]%s'" % (option, quoted(meaning[:100]), value))
        lines.append("    %s) _arguments -S %s '*:file:_files' ;;" % (name, " ".join(specs)))
    return "\n".join(lines + ["  esac", "}", '_sluice "$@"']) + "\n"


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    out = sys.argv[1]
    programs = sys.argv[2] if len(sys.argv) > 2 else os.path.join(ROOT, "build/release/bin")
    version = sluice_version(programs)
    commands, helps = sluice_helps(programs)
    for name, _ in commands:
        see = ".SH SEE ALSO\n.BR sluice (1)\n"
        write(os.path.join(out, "man", "sluice-%s.1" % name), manual("sluice-" + name, 1, helps[name], version, see))
    write(os.path.join(out, "man", "sluice.1"), overview(commands, version))
    for name in DAEMONS:
        page = manual(name, 8, daemon_help(programs, name), version, ".SH SEE ALSO\n.BR sluice (1)\n")
        write(os.path.join(out, "man", name + ".8"), page)
    write(os.path.join(out, "sluice.bash"), bash_completion(commands, helps))
    write(os.path.join(out, "_sluice"), zsh_completion(commands, helps))


if __name__ == "__main__":
    main()
