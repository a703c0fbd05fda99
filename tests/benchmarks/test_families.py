"""The sweep over families says how each one runs, and how far that is from its own numbers."""

from benchmarks.families import rows


def test_each_family_has_a_row_with_its_way_and_its_difference() -> None:
    found = {row["model"]: row for row in rows(["llama", "phi", "gemma2", "gemma3_text-capped", "reformer"])}
    ways = {name: row["runs by"] for name, row in found.items()}
    assert ways["llama"] == "engine" and ways["phi"] == "engine, layers of the library"
    assert ways["gemma2"] == "own forward pass" and ways["reformer"] in ("refused", "no tiny text model")
    assert all(row["difference"] < 1e-3 for name, row in found.items() if name != "reformer")
    assert "step by step" in found["gemma2"]["why"] and found["llama"]["why"] == ""
