"""In CI a test that fails runs a second time, and the run says so.

Some 7,000 tests with real servers, kills and clocks share two cores: in most runs one or two meet a pause
that their limits did not foresee. Their first failure is printed whole, so that it can be mended. A run with
more than a few of them fails: that is no coincidence any more.
"""

from typing import Final

import pytest

MOST: Final = 5


class SecondTries:
    """Reports what failed at first, in the process that prints the results."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failed_first = list[pytest.TestReport]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "rerun":  # what pytest-rerunfailures makes of the first failure
            self._failed_first.append(report)
            self._config.get_terminal_writer().line(f" failed, runs again: {report.nodeid}")
        elif report.failed:
            self._config.get_terminal_writer().line(f" failed: {report.nodeid}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._failed_first:
            return
        terminalreporter.section("FAILED AT THE FIRST TRY")
        for report in self._failed_first:
            terminalreporter.section(report.nodeid, sep="_")
            terminalreporter.line(report.longreprtext)
        if len(self._failed_first) > MOST:
            terminalreporter.line(
                f"{len(self._failed_first)} tests needed a second try; {MOST} may.", red=True
            )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if len(self._failed_first) > MOST:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
