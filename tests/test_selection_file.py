"""Recorded selections: the files that ship, a user's own, and every fault of a file."""

import zipfile

import numpy as np
import pytest

from memsim.errors import UsageError
from workloads.locality_stats import overlap
from workloads.selection import SHIPPED, make_selection


def recording(layers=2, steps=3, k=4, context=20, **changes):
    indices = np.tile(np.arange(k, dtype=np.int32) * 3, (layers, steps, 1))
    indices += np.arange(layers, dtype=np.int32)[:, None, None]
    arrays = {"indices": indices, "query_pos": np.arange(context, context + steps, dtype=np.int32)}
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


def save(path, **arrays):
    np.savez_compressed(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("name", "k", "layer", "layers", "first_context", "share"),
    [  # share of the previous step's set, as published with the files
        ("pydoc_ctx7168_k64_all_layers", 64, 3, 30, 7169, 0.8664),
        ("pydoc_ctx7168_k256", 256, 1, 6, 7169, 0.6822),
        ("pydoc_ctx7168_k2048", 2048, 2, 4, 7169, 0.8439),
        ("code_ctx7168_k256", 256, 2, 3, 7169, 0.6474),
        ("licences_generated_ctx7680_k256", 256, 0, 3, 7681, 0.8019),
    ],
)
def test_shipped_files_replay_as_published(name, k, layer, layers, first_context, share):
    selection = make_selection(name, k, 0)
    steps = 96 if k == 2048 else 256 if not name.startswith("pydoc") else 512
    sets = [selection.rows(layer, 0, step, first_context + step) for step in range(steps)]
    assert overlap(sets, 1) == pytest.approx(share, abs=0.0001)
    np.testing.assert_array_equal(selection.rows(layer + layers, 5, 0, first_context), sets[0])
    with pytest.raises(UsageError, match=rf"found {steps} steps, step {steps} was asked for"):
        selection.rows(layer, 0, steps, first_context + steps)


def test_all_shipped_files_are_tried_above():
    assert len(list(SHIPPED.glob("*.npz"))) == 5


@pytest.mark.parametrize("prefix", ["", "file:"])
def test_own_file_is_found_by_path(tmp_path, prefix):
    path = save(tmp_path / "mine é.npz", **recording(source="my model", provenance="measured"))
    selection = make_selection(f"{prefix}{path}", 4, 0)
    np.testing.assert_array_equal(selection.rows(1, 0, 0, 21), [1, 4, 7, 10])
    assert selection.describe()["source"] == "my model"
    assert selection.describe()["provenance"] == "measured"


def test_own_file_without_provenance_is_assumed(tmp_path):
    about = make_selection(str(save(tmp_path / "mine.npz", **recording())), 4, 0).describe()
    assert about["provenance"] == "assumed"
    assert "mine.npz" in about["source"]


@pytest.mark.parametrize("positions", [20, 22, 131_072])
def test_other_context_is_refused_with_the_one_to_record(tmp_path, positions):
    path = save(tmp_path / "mine.npz", **recording())
    with pytest.raises(
        UsageError, match=rf"context of 21 rows, found a context of {positions}; .*--context 21"
    ):
        make_selection(str(path), 4, 0).rows(0, 0, 0, positions)


def test_context_with_no_more_rows_than_k_selects_all(tmp_path):
    path = save(tmp_path / "mine.npz", **recording())
    np.testing.assert_array_equal(make_selection(str(path), 4, 0).rows(0, 0, 0, 3), [0, 1, 2])


@pytest.mark.parametrize("k", [3, 5, 2048])
def test_other_k_is_refused(tmp_path, k):
    path = save(tmp_path / "mine.npz", **recording())
    with pytest.raises(UsageError, match=rf"mine.npz: found sets of 4 rows, expected {k}; choose"):
        make_selection(str(path), k, 0)


UNSORTED = recording()["indices"][:, :, ::-1].copy()
TWICE = np.full((2, 3, 4), 5, dtype=np.int32)
BEYOND = np.where(np.arange(4) == 3, 22, recording()["indices"]).astype(np.int32)
NEGATIVE = recording()["indices"] - 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": None}, "found arrays query_pos; expected also indices"),
        ({"query_pos": None}, "found arrays indices; expected also query_pos"),
        ({"indices": np.zeros((2, 3, 4))}, r"indices is float64 \[2, 3, 4\]; expected int32 or int64"),
        ({"indices": np.zeros((2, 3, 4), np.uint32)}, "indices is uint32"),
        ({"indices": np.zeros((3, 4), np.int32)}, r"indices is int32 \[3, 4\]"),
        ({"indices": np.zeros((0, 3, 4), np.int32)}, "not empty"),
        ({"query_pos": np.array([20.0, 21.0, 22.0])}, "query_pos is float64"),
        ({"query_pos": np.array([20, 21])}, "found 3 steps of indices and 2 of query_pos"),
        ({"indices": UNSORTED}, "layer 0, step 0: row 6 follows row 9; expected ascending"),
        ({"indices": TWICE}, "row 5 follows row 5; expected ascending rows without duplicates"),
        ({"indices": BEYOND}, "layer 0, step 0: found row 22; expected rows from 0 to .* 20"),
        ({"indices": NEGATIVE}, "layer 0, step 0: found row -1"),
        ({"provenance": "guessed"}, "provenance is 'guessed'; expected one of measured"),
        ({"indices": np.array([None, 1], dtype=object)}, "cannot be read as .npz .*Object arrays"),
    ],
)
def test_faults_inside_a_file_are_named(tmp_path, changes, message):
    path = save(tmp_path / "mine.npz", **recording(**changes))
    with pytest.raises(UsageError, match=message) as caught:
        make_selection(str(path), 4, 0)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def cut(path):
    path.write_bytes(save(path, **recording()).read_bytes()[:-40])


def garbled(path):
    content = bytearray(save(path, **recording()).read_bytes())
    content[60:90] = bytes(30)
    path.write_bytes(content)


def plain_array(path):
    with path.open("wb") as file:
        np.save(file, np.arange(5))


def text_member(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("indices", b"1 2 3")
        archive.writestr("query_pos", b"1 2 3")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "a folder"),
        (lambda path: path.write_bytes(b""), "cannot be read as .npz"),
        (lambda path: path.write_text("rows\n1\n2\n"), "cannot be read as .npz"),
        (lambda path: path.write_bytes(b"PK\x03\x04 not a zip file"), "cannot be read as .npz"),
        (cut, "cannot be read as .npz"),
        (garbled, "cannot be read as .npz"),
        (plain_array, "cannot be read as .npz .a single array"),
        (text_member, "indices is .S5 "),
    ],
)
def test_files_that_are_no_recording_are_named(tmp_path, make, message):
    path = tmp_path / "mine.npz"
    make(path)
    with pytest.raises(UsageError, match=message) as caught:
        make_selection(str(path), 4, 0)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_device_is_not_read():
    with pytest.raises(UsageError, match="/dev/null: not a plain file"):
        make_selection("file:/dev/null", 4, 0)
