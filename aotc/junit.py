"""Checks as JUnit XML, which CI systems show beside a change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol
from xml.etree import ElementTree

# What XML 1.0 cannot say at all.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Checked(Protocol):
    """What is read of a check; `aotc.verify.Check` is one."""

    @property
    def level(self) -> str: ...
    @property
    def program(self) -> str | None: ...
    @property
    def passed(self) -> bool: ...
    @property
    def message(self) -> str: ...
    @property
    def subject(self) -> str | None: ...
    @property
    def field(self) -> str | None: ...
    @property
    def expected(self) -> str | None: ...
    @property
    def found(self) -> str | None: ...
    @property
    def seconds(self) -> float: ...


def render(checks: Sequence[Checked], name: str) -> str:
    """Return the JUnit XML of `checks`: a suite `name`, and in it a test case for each.

    The class of a case is `NAME.LEVEL`, its name the program and, where there is one, the subject.
    """
    failed = sum(not check.passed for check in checks)
    seconds = f"{sum(check.seconds for check in checks):.3f}"
    counts = {"tests": str(len(checks)), "failures": str(failed), "errors": "0", "time": seconds}
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": _text(name), **counts})
    for check in checks:
        parts = [check.program or "all programs", *filter(None, [check.subject])]
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {
                "classname": _text(f"{name}.{check.level}"),
                "name": _text(" ".join(parts)),
                "time": f"{check.seconds:.3f}",
            },
        )
        if check.passed:
            ElementTree.SubElement(case, "system-out").text = _text(check.message)
        else:
            failure = ElementTree.SubElement(case, "failure", {"message": _text(check.message)})
            failure.text = _text(
                "\n".join(
                    f"{label}: {value}"
                    for label, value in (
                        ("field", check.field),
                        ("expected", check.expected),
                        ("found", check.found),
                    )
                    if value is not None
                )
            )
    ElementTree.indent(suites)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, "unicode") + "\n"
    )


def _text(value: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", value)
