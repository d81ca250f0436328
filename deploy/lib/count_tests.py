"""usage: count_tests.py JUNIT_XML; prints 'PASSED FAILED' of a ctest run. A test that did not run counts as failed."""
import sys
import xml.etree.ElementTree as tree

suite = tree.parse(sys.argv[1]).getroot()
total = int(suite.get("tests"))
passed = sum(1 for case in suite.iter("testcase") if case.get("status") == "run" and case.find("failure") is None)
print(passed, total - passed)
