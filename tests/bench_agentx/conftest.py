from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture
def data() -> Path:
    """Small files of each trace format."""
    return DATA


@pytest.fixture
def shared_traces() -> Path:
    """The public traces, unchanged: from AGENTX_TRACES, or beside the checkout."""
    path = Path(os.environ.get("AGENTX_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
    if not path.is_dir():
        pytest.skip(f"no public traces in {path} (set AGENTX_TRACES)")
    return path


@pytest.fixture(scope="session")
def word_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved Hugging Face tokenizer of a few hundred whole words with a space before each."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [" " + first + second for first in "abcdefghijklmnop" for second in "abcdefghijklmnop"]
    vocabulary = {token: number for number, token in enumerate(["<unk>", ".", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" [a-z]+|\S"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    directory = tmp_path_factory.mktemp("word-tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(directory)
    return directory
