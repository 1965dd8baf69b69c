# SPDX-License-Identifier: Apache-2.0
"""The expectations of `make test-integrations`; its runs are not tested here."""

import pathlib
import re

import pytest

from support.programs_as_modules import program_as_module

ROOT = pathlib.Path(__file__).parents[2]
HERE = pathlib.Path(__file__).parent
ENVIRONMENTS = sorted(
    path.stem for path in HERE.glob("requirements/*.txt") if not path.stem.endswith(".no-deps")
)
# The extras of pyproject.toml say what is in it.
LEARNERS = "learners"


@pytest.fixture(scope="module")
def tool():
    with program_as_module("tools/integration_tests.py") as module:
        yield module


@pytest.fixture
def runs_again(tool, monkeypatch, tmp_path):
    """Whether suites that are below their expectation pass when what failed runs again."""
    monkeypatch.setenv("RERUN", "1")
    for name, file in {"_FLAKY": "flaky_tests.txt", "_FAILED": "failed_tests.txt"}.items():
        monkeypatch.setattr(tool.flaky_tests, name, tmp_path / "target" / file)

    class Environment:
        name = "acme-2.15"

        def __init__(self, again):
            self._again = again

        def run(self, suite, *, only_failed):
            assert only_failed
            return self._again

    def runs_again(suite, first, again):
        below = tool.Below(Environment(again), tool.Suite("a suite", **suite), first)
        return tool.pass_again([below])

    return runs_again


@pytest.fixture
def outcome(tool):
    """Makes an outcome: `outcome(0, passed=3)`; `failures` names the tests that failed."""

    def outcome(status, passed=None, failures=()):
        outputs = dict.fromkeys(failures, "an assertion")
        return tool.Outcome(
            status, "output", 1.0, passed=passed, failed=len(outputs), failures=outputs
        )

    return outcome


@pytest.fixture
def judge(tool):
    def judge(suite, status=0, output="", **counts):
        suite = tool.Suite("a suite", **suite)
        return tool.judge(suite, tool.Outcome(status, output, seconds=1.0, **counts))

    return judge


def test_the_makefile_has_the_same_environments():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = re.search(r"^INTEGRATION_ENVS := (.*)", makefile, re.MULTILINE)[1]
    assert sorted(listed.split()) == sorted(ENVIRONMENTS)


@pytest.mark.parametrize("environment", [*ENVIRONMENTS, LEARNERS])
def test_every_suite_can_be_run(tool, environment):
    suites = tool.suites_of(environment)
    assert suites
    for suite in suites:
        assert suite.run in {"pytest", "module", "multiprocessing", "program", "ours"}
        assert set(suite.quick) <= {*ENVIRONMENTS, LEARNERS}
        if suite.run == "program":
            assert (HERE / "programs" / suite.name.split()[0]).exists()
        if suite.run == "ours":
            assert list((ROOT / suite.name).glob("test_*.py"))


@pytest.mark.parametrize("environment", [*ENVIRONMENTS, LEARNERS])
def test_whatever_is_less_than_its_authors_meant_has_a_reason(tool, environment):
    for suite in tool.suites_of(environment):
        if suite.failed or suite.fails_with or suite.crashes_at_exit:
            assert suite.reason, suite.name


def test_as_many_as_expected_are_enough(judge):
    assert judge({"passed": 3, "skipped": 1}, passed=3, skipped=1) == "as expected"


def test_more_than_expected_is_better(judge):
    assert judge({"passed": 3}, passed=4) == "better"
    assert judge({"passed": 3, "failed": 1}, passed=3) == "better"


def test_a_test_that_skips_itself_did_not_pass(judge):
    assert judge({"passed": 3}, passed=2, skipped=1) == "BELOW"


def test_a_failure_is_not_made_good_by_passes(judge):
    assert judge({"passed": 3}, status=1, passed=5, failed=1) == "BELOW"


def test_no_end_is_not_enough(judge):
    assert judge({"passed": 3}, status=None, passed=3) == "BELOW"


def test_no_result_is_not_enough(judge):
    assert judge({"passed": 1}) == "BELOW"


def test_a_crash_after_all_tests_counts_unless_there_is_a_reason(judge):
    assert judge({"passed": 3}, status=-6, passed=3) == "BELOW"
    assert judge({"passed": 3, "crashes_at_exit": True}, status=-6, passed=3) == "as expected"
    assert judge({"passed": 3, "crashes_at_exit": True}, status=-6, passed=2) == "BELOW"


def test_a_suite_that_cannot_run_has_to_say_why(judge):
    suite = {"fails_with": "No module named x"}
    assert judge(suite, status=1, output="Error: No module named x") == "as expected"
    assert judge(suite, status=1, output="Error: something else") == "BELOW"
    assert judge(suite, passed=1) == "better"


def test_counts_are_read_from_what_unittest_prints(tool, tmp_path):
    suite = tool.Suite("a suite", run="module")
    output = "Ran 5 tests in 1.0s\n\nFAILED (failures=1, errors=1, skipped=1)\n"
    outcome = tool.Outcome(1, output, seconds=1.0)
    tool.count(suite, outcome, tmp_path / "report.xml")
    assert (outcome.passed, outcome.skipped, outcome.failed) == (2, 1, 2)


def test_what_failed_once_passes_if_it_passes_alone(runs_again, outcome, capsys, tmp_path):
    first = outcome(1, passed=2, failures=["a::test_1"])
    assert runs_again({"passed": 3}, first, outcome(0, passed=1))
    assert "==> Flaky: integrations\n" in capsys.readouterr().out
    told = (tmp_path / "target" / "flaky_tests.txt").read_text(encoding="utf-8")
    assert told == "integrations: acme-2.15, a suite: a::test_1\n"


def test_what_fails_twice_is_below(runs_again, outcome):
    first = outcome(1, passed=2, failures=["a::test_1"])
    assert not runs_again({"passed": 3}, first, first)
    assert not runs_again({"passed": 3}, first, outcome(None))


@pytest.mark.parametrize("status", [None, -6, 0])
def test_a_suite_that_did_not_only_fail_does_not_run_again(runs_again, outcome, status):
    first = outcome(status, passed=2, failures=["a::test_1"])
    assert not runs_again({"passed": 3}, first, outcome(0, passed=1))


def test_a_suite_with_too_few_tests_does_not_run_again(runs_again, outcome):
    first = outcome(1, passed=1, failures=["a::test_1"])
    assert not runs_again({"passed": 3}, first, outcome(0, passed=1))


def test_the_names_of_tests_that_failed_are_read_from_a_report(tool, tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="2" failures="1" errors="0" skipped="0">'
        '<testcase classname="a" name="test_1"><failure>why</failure></testcase>'
        '<testcase classname="a" name="test_2"/></testsuite></testsuites>',
        encoding="utf-8",
    )
    outcome = tool.Outcome(1, "", seconds=1.0)
    tool.count(tool.Suite("a suite"), outcome, report)
    assert outcome.failures == {"a::test_1": "why"}
