"""The table of names in transformers that ngramspec uses and that may change, with versions.

It lists private names, fields of cache layers, and names in models' modules, and says where the
classes of ``hf_model/compat`` are. Tests check every row against the installed transformers, and
that only ``hf_model/compat`` uses its name. The kinds in ``hf_model/cache`` use fields of layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import transformers

from ngramspec.hf_model.compat import caches, models, package, processors

CACHES = "cache_utils"
LINEAR = f"{caches.LINEAR} {caches.LINEAR_AND_FULL} {caches.LINEAR_AND_SLIDING}"
SLIDING = f"{caches.SLIDING} {caches.LINEAR_AND_SLIDING}"


@dataclass(frozen=True, slots=True)
class Name:
    """A row of the table.

    Attributes:
        name: in transformers.
        where: the module of transformers that binds it, "" for the package itself, or the classes
            of ``cache_utils`` that have it as a field.
        since: the first version that has it; None: every supported version has it.
        until: the first version that no longer has it; None: no version has removed it.
    """

    name: str
    where: str
    since: str | None = None
    until: str | None = None


def rows(where: str, names: str, since: str | None = None, until: str | None = None):
    """Rows by name, of names between spaces."""
    return {name: Name(name, where, since, until) for name in names.split()}


# Private names, used in ``compat`` only, which says for what.

PRIVATE = {
    **rows("generation.utils", "_beam_search _has_unfinished_sequences _prefill _sample"),
    **rows("generation.utils", "_optimize_model_for_decode _update_model_kwargs_for_generation"),
    **rows("generation.utils", "_valid_auto_compile_criteria"),
    **rows("generation.utils", "_is_user_defined", "5.17"),
    **rows("generation.configuration_utils", "_compile_all_devices"),
    **rows("generation.configuration_utils", "_mask_length", "5.18"),
    **rows("modeling_utils", "_attn_implementation"),
    **rows("modeling_utils", "_compiled_call _default_compile_config _is_stateful"),
    **rows("modeling_layers", "_project_to_logits"),
    **rows("distributed.mixin", "_device_mesh"),
    **rows("configuration_utils", "_commit_hash", until="5.18"),
    **rows("utils.hub", "_raise_exceptions_for_connection_errors"),
    **rows("utils.hub", "_raise_exceptions_for_missing_entries"),
}
# Fields of cache layers and caches, used in ``compat`` and in ``cache`` only.
FIELDS = {
    **rows(f"{SLIDING} LinearAttentionLayer LinearAttentionAndFullAttentionLayer", "record_past"),
    **rows(f"{SLIDING} StaticLayer", "cumulative_length"),
    **rows("StaticLayer", "max_cache_len lazy_initialization"),
    **rows(LINEAR, "conv_states conv_kernel_size recurrent_states has_previous_state"),
    **rows(LINEAR, "is_conv_states_initialized is_recurrent_states_initialized"),
    **rows("DynamicIndexedLayer", "indexer_keys"),
    **rows("DynamicIndexedLayer", "indexer_position_ids", "5.21"),
    **rows("EncoderDecoderCache", "self_attention_cache cross_attention_cache"),
    **rows("DynamicCache StaticCache", "offloading"),
}
# Methods that are replaced on single objects, in ``caches`` only.
REPLACED = rows("DynamicLayer DynamicCache", "update")
# The common interface of layers and caches.
COMMON_FIELDS = {
    **rows("DynamicLayer DynamicIndexedLayer StaticLayer", "keys values is_initialized is_sliding"),
    **rows("DynamicLayer DynamicIndexedLayer StaticLayer", "get_seq_length get_max_length"),
    **rows("DynamicLayer DynamicSlidingWindowLayer", "crop"),
    **rows(f"{SLIDING} {LINEAR}", "activate_past_recording"),
    **rows("DynamicCache StaticCache", "layers"),
}
# Names, ends and parts of names in models' own modules.
MODEL_NAMES = rows(
    "models",
    "create_position_ids_from_input_ids expert_capacity time_step_limit Indexer Expert Moe",
)

# Classes, by the group in ``compat`` that lists them.

CLASS_MODULES = {
    **dict.fromkeys(("KNOWN_CACHES", "DYNAMIC", "INDEXED", "SLIDING", "STATIC"), CACHES),
    **dict.fromkeys(("STATIC_SLIDING", "LINEAR", "LINEAR_AND_FULL"), CACHES),
    **dict.fromkeys(("LINEAR_AND_SLIDING", "EMPTY"), CACHES),
    **dict.fromkeys(("BY_SLOT", "REREADS", "ONE_AT_A_TIME", "OWN_CACHE"), ""),
    **dict.fromkeys(("ONE_AT_A_TIME_WITH", "NOT_STATIC", "MASKS_SEVERAL"), ""),
    **dict.fromkeys(("PLACES_ONE_TOKEN_ELSEWHERE", "ATTENDS_BY_OUTPUT", "PASSES_POSITIONS"), ""),
    "MIXES_POSITIONS": None,  # the classes' own modules
    "WEIGHT_QUANTIZERS": "quantizers.quantizer_gguf",
    **dict.fromkeys(("BY_ROW", "PROCESSOR_LIST"), package.PROCESSOR_MODULE),
    **dict.fromkeys(
        ("END_OF_SEQUENCE", "MAX_LENGTH", "MAX_TIME", "STOP_STRING"), package.CRITERION_MODULE
    ),
}
CLASSES_SINCE = {
    "DoryForCausalLM": "5.24",
    "DummyLayer": "5.23",
    "GgufHfQuantizer": "5.17",
    "HyperCLOVAXVisionV2ForConditionalGeneration": "5.18",
    "MossTranscribeDiarizeForConditionalGeneration": "5.20",
}


@cache
def modules_of_models() -> dict[str, str]:
    """The module of each class of transformers' models."""
    models = Path(transformers.__file__).parent / "models"
    return {
        name: f"models.{path.parent.name}.{path.stem}"
        for path in sorted(models.rglob("modeling_*.py"))
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


GROUPS = (models, package, caches, processors)


def listed_in(group: str) -> Iterable[str]:
    """Names in a group of ``compat``, which may be a single one."""
    found = next(vars(each)[group] for each in GROUPS if hasattr(each, group))
    return (found,) if isinstance(found, str) else sorted(found)  # one order in all processes


CLASSES = [
    Name(name, modules_of_models()[name] if module is None else module, CLASSES_SINCE.get(name))
    for group, module in CLASS_MODULES.items()
    for name in listed_in(group)
]
