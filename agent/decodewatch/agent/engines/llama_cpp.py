"""What the adapters of llama.cpp share: its KV cache types, and the spec of a GGUF file."""

import os

from decodewatch.agent.wrapper import complain
from decodewatch.shared.errors import DecodewatchError
from decodewatch.shared.ggml import TENSOR_TYPES
from decodewatch.shared.model import KV_TYPES, ModelSpec


def model_spec(
    path: str | os.PathLike[str],
    types: tuple[object, object],
    context_limit: int | None,
    overflow: str,
) -> ModelSpec | None:
    """The spec of the file, with a KV cache that is allocated at once; None, with a word to the
    log, where the file cannot be read.

    `types` are ggml's numbers for K and V.
    """
    names = tuple(kv_type(one) for one in types)
    both = (names[0], names[1]) if names[0] is not None and names[1] is not None else None
    try:
        return ModelSpec.from_gguf(
            path,
            kv_type=both,
            context_limit=context_limit,
            allocation="at_once",
            overflow=overflow,
        )
    except DecodewatchError as error:
        complain.once("gguf", "decodewatch: the model is not known: %s", error)
        return None


def kv_type(number: object) -> str | None:
    """The name of a KV cache type by ggml's number; None where it is none of KV_TYPES.

    None as the number is what llama.cpp uses where nothing was set.
    """
    if number is None:
        return "f16"
    if not isinstance(number, int) or int(number) not in TENSOR_TYPES:
        return None
    name = TENSOR_TYPES[int(number)][0].lower()
    return name if name in KV_TYPES else None
