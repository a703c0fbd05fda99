"""`reflectrl data critic`: Keras's critic of inferences becomes a folder that gives the same scores.

`fixtures/keras_critic.zip` holds a tiny critic as TensorFlow 2.15 and transformers 4.37 saved it after a training step
under MirroredStrategy (like the published one), with Keras's own scores. Only programs were removed from its
`saved_model.pb`.
"""

import json
import shutil
import sys
import zipfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, RobertaModel

from reflectrl.cli import main
from reflectrl.wings.text.rewards.components import CometCritic
from reflectrl.wings.text.rewards.published import load_classifier
from reflectrl.wings.text.rewards.saved_model import read_variables
from reflectrl.wings.text.samples.sample import Sample

if find_spec("h5py") is None:
    pytest.skip("the extra keras", allow_module_level=True)

import h5py  # it needs the extra, which is looked for above

FIXTURE = Path(__file__).parent / "fixtures" / "keras_critic.zip"
WIDTH = 6
KERAS = {
    "LayerNorm.weight": "LayerNorm/gamma",
    "LayerNorm.bias": "LayerNorm/beta",
    "word_embeddings.weight": "word_embeddings/weight",
    "embeddings.weight": "embeddings/embeddings",
}
"""Ends of names in torch, and in Keras where they are not a dense layer's."""


def keras_name(name: str) -> str:
    """The name under which transformers' Keras models keep a weight of RoBERTa."""
    for end, theirs in KERAS.items():
        if name.endswith(end):
            path = name.removesuffix(end).replace(".", "/") + theirs
            break
    else:
        path = name.replace(".", "/").removesuffix("/weight")
        path = f"{path}/kernel" if name.endswith(".weight") else path
    return f"tf_roberta_model/roberta/{path.replace('encoder/layer/', 'encoder/layer_._')}:0"


def weights_of(model, head) -> dict[str, dict[str, np.ndarray]]:
    """The arrays of a critic by layer and name, as Keras has them."""
    roberta = {}
    for name, tensor in model.state_dict().items():
        path = keras_name(name)
        roberta[path] = tensor.numpy().T if path.endswith("kernel:0") else tensor.numpy()
    layers = {"roberta": roberta}
    for name, layer in zip(("dense", "dense_1"), head, strict=True):
        kernel, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()
        layers[name] = {f"{name}/kernel:0": kernel, f"{name}/bias:0": bias}
    return layers


def save_hdf5(path: Path, layers, group: str = "/") -> None:
    """Write an HDF5 file as `Model.save_weights` does, or as `Model.save` with the group "model_weights"."""
    with h5py.File(path, "w") as file:
        root = file.require_group(group)
        root.attrs["layer_names"] = [name.encode() for name in layers]
        for layer, arrays in layers.items():
            part = root.create_group(layer)
            part.attrs["weight_names"] = [name.encode() for name in arrays]
            for name, array in arrays.items():
                part.create_dataset(name, data=array)
        if group != "/":  # the optimiser has an array of the same name for every weight
            slots = file.create_group("optimizer_weights/Adam/m")
            for name, array in layers["roberta"].items():
                slots.create_dataset(name, data=np.zeros_like(array))


@pytest.fixture
def critic(classifier):
    """A tiny RoBERTa, and the two layers after it."""
    torch.manual_seed(0)
    model = RobertaModel.from_pretrained(classifier("roberta", 2)).eval()
    return model, (torch.nn.Linear(16, WIDTH), torch.nn.Linear(WIDTH, 1))


def convert(*words: str | Path) -> int:
    return main(["data", "critic", *map(str, words)])


def refused(capsys, *words: str | Path) -> str:
    """The one line with which words are refused."""
    assert convert(*words) == 2
    err = capsys.readouterr().err
    assert err.startswith("reflectrl: ") and err.count("\n") == 1, err
    return err


@pytest.mark.parametrize("group", ["/", "model_weights"])
def test_a_critic_in_hdf5_gives_the_same_scores_after_conversion(critic, classifier, tmp_path, capsys, group):
    model, (dense, out) = critic
    save_hdf5(tmp_path / "critic.h5", weights_of(model, (dense, out)), group)
    to = tmp_path / "critic"
    assert convert("--from", tmp_path / "critic.h5", "--base", classifier("roberta", 2), "--to", to) == 0
    assert f"--rewards.comet_critic.model {to}" in capsys.readouterr().out
    component = CometCritic(str(to), device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(classifier("roberta", 2))
    wishes = [
        Sample("s", "g", "", f" to {end}", 0.0, meta={"head": "PersonX works", "relation": "xWant"})
        for end in ("sleep", "be paid for it", "go")
    ]
    expected = []
    with torch.inference_mode():
        for wish in wishes:
            pooled = model(**tokenizer(*component.text(wish), return_tensors="pt")).pooler_output
            expected.append(float(out(torch.nn.functional.gelu(dense(pooled))).sigmoid()))
    assert component.score(wishes) == pytest.approx(expected, abs=1e-6)
    assert len({round(score, 4) for score in expected}) == 3  # the texts can be told apart
    assert not list(to.glob("*.pt")) and not list(to.glob("*.bin"))


@pytest.fixture
def saved(tmp_path, classifier) -> tuple[Path, Path]:
    """What Keras saved, and the folder of its configuration with some tokenizer."""
    with zipfile.ZipFile(FIXTURE) as archive:
        archive.extractall(tmp_path / "keras")
    base = tmp_path / "base"
    AutoTokenizer.from_pretrained(classifier("roberta", 2)).save_pretrained(base)
    shutil.copy(tmp_path / "keras" / "config.json", base)
    return tmp_path / "keras" / "saved_model", base


def test_a_folder_of_keras_gives_the_scores_that_keras_gave(saved, tmp_path):
    source, base = saved
    assert convert("--from", source, "--base", base, "--to", tmp_path / "critic") == 0
    model, info = load_classifier(str(tmp_path / "critic"))
    theirs = json.loads((source.parent / "scores.json").read_text())
    with torch.inference_mode():
        scores = model.eval()(torch.tensor(theirs["input"])).logits.sigmoid()[:, 0]
    assert scores.tolist() == pytest.approx(theirs["scores"], abs=1e-6)
    assert not info["missing_keys"]


def test_a_folder_holds_weights_and_nothing_of_the_optimiser(saved):
    variables = read_variables(saved[0])
    assert len(variables) == 39 + 4  # a RoBERTa of two layers, and two dense layers
    assert variables["tf_roberta_model/roberta/embeddings/word_embeddings/weight"].shape == (20, 8)
    assert variables["dense/kernel"].shape == (8, WIDTH)


class TestMistakes:
    def test_a_missing_layer_is_named(self, critic, classifier, tmp_path, capsys):
        layers = weights_of(*critic)
        del layers["roberta"]["tf_roberta_model/roberta/encoder/layer_._1/output/dense/bias:0"]
        save_hdf5(tmp_path / "critic.h5", layers)
        words = ("--from", tmp_path / "critic.h5", "--base", classifier("roberta", 2), "--to", tmp_path / "to")
        assert "encoder.layer.1.output.dense.bias is missing" in refused(capsys, *words)
        assert not (tmp_path / "to").exists()

    def test_a_wrong_shape_is_named(self, critic, classifier, tmp_path, capsys):
        layers = weights_of(*critic)
        layers["dense_1"]["dense_1/kernel:0"] = np.zeros((WIDTH, 2), np.float32)
        save_hdf5(tmp_path / "critic.h5", layers)
        words = ("--from", tmp_path / "critic.h5", "--base", classifier("roberta", 2), "--to", tmp_path / "to")
        assert "out_proj.weight has the shape (2, 6); it must have (1, 6)" in refused(capsys, *words)

    def test_a_base_of_another_depth_is_refused(self, saved, classifier, tmp_path, capsys):
        config = json.loads((saved[1] / "config.json").read_text()) | {"num_hidden_layers": 1}
        (saved[1] / "config.json").write_text(json.dumps(config))
        err = refused(capsys, "--from", saved[0], "--base", saved[1], "--to", tmp_path / "to")
        assert "encoder.layer.1.attention" in err and "unexpected" in err

    def test_a_base_far_larger_than_the_weights_is_refused(self, saved, tmp_path, capsys):
        config = json.loads((saved[1] / "config.json").read_text()) | {"vocab_size": 10**9}
        (saved[1] / "config.json").write_text(json.dumps(config))
        err = refused(capsys, "--from", saved[0], "--base", saved[1], "--to", tmp_path / "to")
        assert "far larger model" in err

    def test_other_models_and_files_are_refused(self, critic, classifier, saved, tmp_path, capsys):
        base = classifier("roberta", 2)
        (tmp_path / "text.h5").write_text("hello")
        assert "not an HDF5 file" in refused(capsys, "--from", tmp_path / "text.h5", "--base", base, "--to", "to")
        assert "not a model saved by Keras" in refused(capsys, "--from", base, "--base", base, "--to", "to")
        assert "no such file" in refused(capsys, "--from", tmp_path / "none", "--base", base, "--to", "to")
        assert "neither a folder nor" in refused(capsys, "--from", saved[0], "--base", "nobody/roberta", "--to", "to")
        gpt2 = classifier("gpt2", 2)
        assert "not a RoBERTa but a gpt2" in refused(capsys, "--from", saved[0], "--base", gpt2, "--to", "to")
        save_hdf5(tmp_path / "other.h5", {"lstm": {"lstm/kernel:0": np.zeros((2, 2), np.float32)}})
        err = refused(capsys, "--from", tmp_path / "other.h5", "--base", base, "--to", "to")
        assert "is not a critic of Keras" in err

    def test_a_folder_that_exists_is_kept(self, saved, tmp_path, capsys):
        (tmp_path / "to").mkdir()
        (tmp_path / "to" / "mine").touch()
        err = refused(capsys, "--from", saved[0], "--base", saved[1], "--to", tmp_path / "to")
        assert "already exists" in err and (tmp_path / "to" / "mine").exists()

    def test_a_file_that_points_at_other_files_is_refused(self, critic, classifier, tmp_path, capsys):
        (tmp_path / "secret").write_bytes(bytes(4 * WIDTH))
        layers = weights_of(*critic)
        del layers["dense"]["dense/bias:0"]
        save_hdf5(tmp_path / "critic.h5", layers)
        with h5py.File(tmp_path / "critic.h5", "a") as file:
            outside = [(str(tmp_path / "secret"), 0, 4 * WIDTH)]
            file["dense"].create_dataset("dense/bias:0", (WIDTH,), "f4", external=outside)
        words = ("--from", tmp_path / "critic.h5", "--base", classifier("roberta", 2), "--to", tmp_path / "to")
        assert "the numbers of dense/dense/bias:0 are in another file" in refused(capsys, *words)

    def test_without_the_package_one_line_names_the_extra(self, saved, tmp_path, capsys, monkeypatch):
        (tmp_path / "critic.h5").touch()
        monkeypatch.setitem(sys.modules, "h5py", None)
        err = refused(capsys, "--from", tmp_path / "critic.h5", "--base", saved[1], "--to", tmp_path / "to")
        assert "HDF5 files need the package h5py" in err and "'.[keras]'" in err

    def test_a_truncated_shard_is_refused(self, saved, tmp_path, capsys):
        shard = saved[0] / "variables" / "variables.data-00000-of-00001"
        shard.write_bytes(shard.read_bytes()[:100])
        err = refused(capsys, "--from", saved[0], "--base", saved[1], "--to", tmp_path / "to")
        assert "is not a model saved by Keras" in err


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, bytes]:
    with zipfile.ZipFile(FIXTURE) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.startswith("saved_model/")}


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_damaged_folder_ends_in_one_kind_of_error(data, files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    for name, content in files.items():
        changed = bytearray(content)
        if not name.endswith("00001"):
            for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3)):
                changed[place] = data.draw(st.integers(0, 255))
            changed = changed[: data.draw(st.sampled_from([len(content), len(content) // 2, 60]))]
        path = folder / Path(name).relative_to("saved_model")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(changed)
    with suppress(ValueError):
        assert all(array.dtype == np.float32 for array in read_variables(folder).values())
