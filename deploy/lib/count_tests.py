"""usage: count_tests.py JUNIT_XML            prints 'PASSED FAILED' of a ctest run; a test that did not run counts as failed
          count_tests.py --slowest JUNIT_XML..  prints the ten slowest tests of several runs with their seconds"""
import sys
import xml.etree.ElementTree as tree


def cases(path):
    return list(tree.parse(path).getroot().iter("testcase"))


def count(path):
    total = int(tree.parse(path).getroot().get("tests"))
    passed = sum(1 for case in cases(path) if case.get("status") == "run" and case.find("failure") is None)
    print(passed, total - passed)


def slowest(paths):
    times = [(float(case.get("time")), case.get("name"), path) for path in paths for case in cases(path)]
    for seconds, name, path in sorted(times, reverse=True)[:10]:
        print(f"{seconds:8.1f} s  {name}  ({path.split('/')[-1].split('.')[0]})")


if sys.argv[1] == "--slowest":
    slowest(sys.argv[2:])
else:
    count(sys.argv[1])
