"""Comments and names in the world's scripts: part of a run is found, with a line and a percentage that holds."""

import unicodedata

import pytest

from reflectrl.wings.autoexplore.locate.decision import UNSURE
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.search import Hit

COMMENTS = {
    "refund": "订单退款：计算应退金额，并通知客户。",
    "lock": "用户登录失败三次后锁定账号",
    "invoice": "產生發票的序號，不允許重複",
    "pool": "データベース接続の再試行回数を設定する",
    "tax": "消費税の端数を切り捨てる",
    "password": "사용자의 비밀번호를 초기화하는 함수",
    "cart": "장바구니에 담긴 상품의 합계",
    "rent": "คำนวณค่าเช่ารายเดือนของผู้เช่า",
    "hindi": "पासवर्ड बदलने का तरीका",
    "spanish": "la facturación anual del año próximo",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    root = tmp_path_factory.mktemp("scripts")
    for name, comment in COMMENTS.items():
        text = f"import os\n\n\ndef run_{name[::-1]}(x):\n    # {comment}\n    return x\n"
        (root / f"{name[::-1]}.py").write_text(text, encoding="utf-8")
    long = "各种说明" * 40 + "关于汇率换算的段落" + "其余文字" * 40
    (root / "long.md").write_text(f"# Notes\n\n{long}\n", encoding="utf-8")
    (root / unicodedata.normalize("NFD", "Übersicht.md")).write_text("# Totals of the year\n", encoding="utf-8")
    return Engine(root, cached=False)


def first(engine: Engine, question: str) -> Hit:
    return engine.search(question, 5)[0]


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("退款", "refund"),
        ("退款金额在哪里计算?", "refund"),
        ("where is the 退款 computed", "refund"),
        ("为什么账号会被锁定", "lock"),
        ("發票序號", "invoice"),
        ("接続の再試行", "pool"),
        ("消費税はどこで計算していますか", "tax"),
        ("비밀번호 초기화", "password"),
        (unicodedata.normalize("NFD", "비밀번호 초기화"), "password"),
        ("장바구니 합계는 어디에서 계산합니까", "cart"),
        ("ค่าเช่า", "rent"),
        ("पासवर्ड", "hindi"),
        (unicodedata.normalize("NFD", "facturación del año"), "spanish"),
        ("锁", "lock"),
    ],
)
def test_a_part_of_a_run_is_found_with_its_line(engine: Engine, question: str, name: str) -> None:
    hit = first(engine, question)
    assert (hit.path, hit.line) == (f"{name[::-1]}.py", 5) and hit.probability and hit.probability >= UNSURE


def test_a_paragraph_without_spaces_is_no_data(engine: Engine) -> None:
    assert first(engine, "汇率换算").path == "long.md"


def test_composed_and_decomposed_names_are_the_same(engine: Engine) -> None:
    for form in ("NFC", "NFD"):
        assert first(engine, unicodedata.normalize(form, "übersicht")).path.endswith("bersicht.md")


def test_what_nothing_holds_finds_nothing(engine: Engine) -> None:
    assert engine.search("银河", 5) == []


def test_names_in_code_end_where_another_script_begins() -> None:
    inquiry = Inquiry.of("max_retry在哪里读取？见src/app.py:12的说明")
    assert inquiry.identifiers["=maxretry"] == "max_retry" and "src/app.py" in inquiry.paths
    assert inquiry.line_in("src/app.py") == 12
