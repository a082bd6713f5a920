"""JUnit XML: every check is a test case, and any text is well-formed."""

from xml.etree import ElementTree

from aotc import junit
from aotc.verify import Check


def test_cases_and_counts() -> None:
    checks = [
        Check("integrity", None, True, "every blob has its digest", seconds=0.25),
        Check("numerics", "decode", True, "close", subject="least", seconds=1.5),
        Check(
            "contract",
            "decode",
            False,
            "the dtype differs",
            field="x.dtype",
            expected="bf16",
            found="fp32",
        ),
    ]
    root = ElementTree.fromstring(junit.render(checks, "aotc.tiny.x86_64_v3"))
    (suite,) = root
    assert root.tag == "testsuites"
    assert suite.attrib == {
        "name": "aotc.tiny.x86_64_v3",
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "time": "1.750",
    }
    named = [(each.get("classname"), each.get("name"), each.get("time")) for each in suite]
    assert named == [
        ("aotc.tiny.x86_64_v3.integrity", "all programs", "0.250"),
        ("aotc.tiny.x86_64_v3.numerics", "decode least", "1.500"),
        ("aotc.tiny.x86_64_v3.contract", "decode", "0.000"),
    ]
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "the dtype differs"
    assert failure.text == "field: x.dtype\nexpected: bf16\nfound: fp32"


def test_no_checks() -> None:
    (suite,) = ElementTree.fromstring(junit.render([], "nothing"))
    assert (suite.get("tests"), suite.get("failures"), len(suite)) == ("0", "0", 0)


def test_any_text() -> None:
    message = '<&>"\x00\x1b[31m\ud800\uffff]]>'
    text = junit.render([Check("contract", "decode", False, message, found=message)], "tiny")
    assert text.encode().startswith(b'<?xml version="1.0" encoding="UTF-8"?>\n')
    (failure,) = ElementTree.fromstring(text).iter("failure")
    assert failure.get("message") == '<&>"��[31m��]]>'
    assert failure.text == "found: " + '<&>"��[31m��]]>'
