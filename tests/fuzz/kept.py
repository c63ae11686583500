"""Cases of ``make test``: those that failed once, or nearly did, and those of no other test.

Add one to ``KEPT`` by copying the line that ``make fuzz`` prints; its name says what was wrong.
"""

from __future__ import annotations

from fuzz.case import PROMPT, Case

__all__ = ["KEPT", "PROMPT", "TEXTS"]

TWO = (PROMPT, (3, 4, 3, 4, 3, 4, 9, 3, 7, 7, 8, 9))
STATIC = {"max_new_tokens": 24, "cache_implementation": "static"}
DICT = {"return_dict_in_generate": True}
STATES = DICT | {"output_hidden_states": True}
STATES24 = {"max_new_tokens": 24, **STATES}
TREE = {"drafter": "bushy", "settings": {"tree": 17}}
THREE = (
    (PROMPT * 2)[:8],
    (PROMPT * 2)[3:14],
    (11, 12, 13, 11, 12, 13, 11, 12, 13, 11, 12, 13, 14, 9),
)
LONG = {"max_new_tokens": 60, **DICT}
WINDOWS = ("mistral sliding", "gemma2", "gpt-oss", "llama4")
TURN = 20  # positions after which the longrope families take their long factors
# Here drafts are accepted, as trees where settings name one, and the text is the baseline's.
TEXTS: dict[str, Case] = {
    **{
        f"trees and a second turn over {kind} attention of {family}": Case(
            family=family,
            prompts=((PROMPT * 2)[:8],),
            turns=2,
            attention=kind,
            options=LONG,
            **TREE,
        )
        for family, kind in (*((each, "default") for each in WINDOWS), ("gemma2", "eager"))
    },
    **{
        f"trees of three rows over {kind} attention of {family}": Case(
            family=family, prompts=THREE, attention=kind, options={"max_new_tokens": 60}, **TREE
        )
        for family, kind in (*((each, "default") for each in WINDOWS), ("gpt-oss", "eager"))
    },
    "trees and a second turn inside a longer window": Case(
        family="mistral longer window", turns=2, options={"max_new_tokens": 12, **DICT}, **TREE
    ),
    **{
        f"trees over a static cache with windows of {family}": Case(
            family=family, options=LONG | STATIC, **TREE
        )
        for family in ("mistral sliding", "llama4")
    },
    **{
        f"rows in lock-step over a static cache with windows of {family}": Case(
            family=family, prompts=THREE, drafter="half", options=STATIC
        )
        for family in ("gemma2", "gpt-oss")
    },
    **{
        f"accepted nodes that are moved in a {cache} cache of {family}, {mask} masked": Case(
            family=family,
            attention=attention,
            mask=mask,
            options=LONG | ({"cache_implementation": "static"} if cache == "static" else {}),
            **TREE,
        )
        for family, attention, cache, mask in (
            ("llama", "sdpa", "static", "left"),
            ("llama", "sdpa", "dynamic", "padding"),
            ("gpt2", "eager", "static", "padding"),
            ("gpt2", "eager", "dynamic", "left"),
        )
    },
    **{
        f"{drafter} drafts from token {length} on where the factors change": Case(
            family="phi3 longrope",
            prompts=((PROMPT * 3)[:length],),
            drafter=drafter,
            settings={"tree": 6} if drafter == "bushy" else {"gamma": 5},
            options={"max_new_tokens": 30, **DICT},
        )
        for drafter, length in (
            *(("half", TURN - 1), ("half", TURN + 1)),
            *(("bushy", TURN // 2), ("bushy", TURN)),
        )
    },
    **{
        f"rows of {family} whose frequencies are shared": Case(
            family=family, prompts=((PROMPT * 2)[:18], PROMPT), drafter="half", options=STATES24
        )
        for family in ("phi3 longrope", "llama dynamic")
    },
    **{
        f"a cache of {family} that is dropped, {len(rows)} rows with {sorted(options)[0]}": Case(
            family=family, prompts=rows, drafter=drafter, settings=settings, options=options
        )
        for family in ("phi3 longrope", "phi3 rereads")
        for rows, drafter, settings, options in (
            ((PROMPT,), "half", {}, STATES24),
            ((PROMPT,), "bushy", {"tree": 6}, STATIC | DICT),
            ((PROMPT, PROMPT[::-1]), "half", {}, STATIC | DICT),
        )
    },
    **{
        f"rows whose positions {family} counts, weights on the {offload}": Case(
            family=family, prompts=THREE, offload=offload, options={"max_new_tokens": 24}, **TREE
        )
        for family, offload in (("m2m100", "disk"), ("bart", "cpu"), ("t5", "cpu"))
    },
    **{
        f"a hybrid whose weights are on the {offload}": Case(
            family="Qwen3NextForCausalLM", offload=offload, drafter="oracle"
        )
        for offload in ("cpu", "disk")
    },
    **{
        f"a {cache} cache as a fixed width leaves it": Case(
            seed=0,  # with room for the width
            attention="eager",
            cache=cache,
            drafter="half",
            settings={"width": 8},
            options={"max_new_tokens": 40, **DICT},
        )
        for cache in ("dynamic", "static")
    },
    **{
        f"the states, the cache and their memory that {family} returns": Case(
            family=f"{family}ForCausalLM", drafter="half", settings={"gamma": 5}, options=STATES24
        )
        for family in (
            *("Lfm2", "Lfm3", "Inkling", "DeepseekV32"),
            *("Bamba", "Qwen3Next", "Zaya", "Mamba2"),
        )
    },
    **{
        f"memory of all that {family} returns, with {sorted(more)}": Case(
            family=family,
            prompts=(PROMPT, PROMPT[::-1]),
            attention="eager",
            drafter="half",
            options=STATES24 | {f"output_{each}": True for each in ("scores", "logits")} | more,
        )
        for family in ("llama", "bart", "t5", "mistral sliding")
        for more in ({}, {"cache_implementation": "static"})
    },
    "trees at positions that a model accepts and does not use": Case(
        family="bart decoder", inputs="offset positions", options={"max_new_tokens": 40}, **TREE
    ),
    **{
        f"a processor that couples {len(rows)} rows, guidance {scale}": Case(
            prompts=rows,
            drafter="half",
            processors=("column bias",),
            options={"max_new_tokens": 40} | ({"guidance_scale": scale} if scale else {}),
        )
        for rows in ((PROMPT,), THREE)
        for scale in (None, 1.5)
    },
    "a static cache, positions by ALiBi": Case(family="bloom", drafter="half", options=STATIC),
    "ALiBi of a mask per token": Case(family="falcon alibi", drafter="half"),
    "attentions under eager attention": Case(
        family="falcon",
        attention="eager",
        drafter="half",
        options={"max_new_tokens": 24, **DICT, "output_attentions": True},
    ),
    "masks for every row of a static cache": Case(
        family="mvp decoder", prompts=TWO, drafter="half", options=STATIC
    ),
    "masks for every row of a static cache, too": Case(
        family="trocr decoder", prompts=TWO, drafter="half", options=STATIC
    ),
    "rows of a caller's cache, without gaps": Case(
        prompts=TWO,
        cache="dynamic",
        turns=2,
        drafter="half",
        options={"max_new_tokens": 16, **DICT},
    ),
    "rows that a streamer is shown together": Case(prompts=TWO, streamer=True, drafter="half"),
    "rows of embeddings": Case(prompts=TWO, inputs="embeds", drafter="half"),
    "a batch with images": Case(family="git image", prompts=TWO, inputs="image", drafter="half"),
    "most of a prompt inside the cache": Case(cache="begun", drafter="bushy", settings={"tree": 6}),
    "rows of int32": Case(prompts=TWO, prompt_dtype="int32", drafter="half", processors=("watch",)),
    "embeddings without a weight": Case(family="own embeddings", drafter="half"),
    "placeholders of an image beyond the vocabulary": Case(
        family="gemma3 image, its id beyond", inputs="image"
    ),
    "a text that an encoder has read": Case(
        family="t5", inputs="encoder outputs", drafter="copy+ngram+unigram"
    ),
    "sampled rows that advance together": Case(
        prompts=TWO,
        drafter="half",
        criteria=("watch",),
        options={
            **{"max_new_tokens": 24, "do_sample": True, "temperature": 0.8},
            **(DICT | {"output_scores": True}),
        },
    ),
    "a static cache with windows, which is returned": Case(
        family="gemma2", drafter="bushy", settings={"tree": 9}, options=STATIC | DICT
    ),
    "windows that slide on, in two turns and after them": Case(
        family="mistral sliding", turns=2, drafter="half", options={"max_new_tokens": 24, **DICT}
    ),
    "sampled in the mode in which it was opened": Case(
        entry="stepwise",
        mode="calls",
        steps="outside",
        drafter="half",
        options={"max_new_tokens": 24, "do_sample": True, "repetition_penalty": 1.1},
    ),
}
KEPT: dict[str, Case] = {
    **{
        f"a text beyond the model's positions, which is warned of, beams {beams}": Case(
            family="llama dynamic",
            drafter="half",
            options={"max_new_tokens": 24, "num_beams": beams},
        )
        for beams in (1, 2)
    },
    **{
        f"padding tokens without a mask, which GPT-2 warns of, {at}": Case(
            family="gpt2",
            shape=2,
            prompts=(PROMPT,) * rows,
            mask="none",
            cache=cache,
            drafter="half",
            options={"max_new_tokens": 16, "sequence_bias": [[[0], 9.0]], **more},
        )
        for at, (rows, cache, more) in enumerate(
            (
                *((1, cache, {}) for cache in ("own", "begun")),
                *((2, "own", {}), (2, "begun", {"eos_token_id": 33}), (2, "own", {"num_beams": 2})),
            )
        )
    },
    "padding tokens at the ends of wrong drafts, which GPT-2 does not warn of": Case(
        family="gpt2",
        shape=2,
        mask="none",
        drafter="liar",
        options={"max_new_tokens": 16, "sequence_bias": [[[60], 9.0]]},
    ),
    **{
        f"slow kernels for single tokens, which {family} warns of, after {len(prompt)}": Case(
            family=f"{family}ForCausalLM",
            prompts=(prompt,),
            turns=2,
            drafter="half",
            options={"max_new_tokens": 8, **DICT},
        )
        for family in ("Lfm2", "Inkling", "Mamba2", "Qwen3Next")
        for prompt in ((5,), PROMPT)
    },
    "a prompt's keys that a hook drops, before the prefill's draft": Case(
        prompts=(PROMPT * 8,), hooks="compress"
    ),
    "keys that a hook drops in some layers of a model with windows": Case(
        family="gemma2", prompts=((PROMPT * 9)[:85],), hooks="compress"
    ),
    "a padding token that is generated step by step": Case(
        family="gpt2", shape=2, prompts=((19,),), options={"max_new_tokens": 3}, entry="stepwise"
    ),
    "keys that a hook drops in a batch with padding": Case(
        prompts=(PROMPT, (PROMPT * 8)[:76]), options={"max_new_tokens": 8}, hooks="compress"
    ),
    "the same in rows of different lengths": Case(
        family="gemma3", prompts=((PROMPT * 9)[:71], PROMPT), hooks="compress"
    ),
    "a prefill over recurrent states that has no forward after it": Case(
        family="FalconH1ForCausalLM", prompts=((39,),), options={"max_new_tokens": 1}
    ),
    "a given static cache that the model drops in its prefill": Case(
        family="phi3 longrope",
        prompts=((PROMPT * 3)[:21],),
        cache="static",
        options={"max_new_tokens": 1},
    ),
    "positions whose weights are offloaded": Case(family="trocr decoder", offload="cpu"),
    "trial forwards whose weights are offloaded": Case(
        family="FalconH1ForCausalLM", offload="disk"
    ),
    "a model that another thread saves inside a forward": Case(looks=True),
    "a static cache with windows, used again": Case(
        family="mistral sliding", turns=2, options=STATIC | DICT
    ),
    "a failing forward over recurrent states of inference mode": Case(
        family="LaraMiniForCausalLM",
        prompts=((29,),),
        cache="whole",
        options={"max_new_tokens": 1, "do_sample": True, "num_return_sequences": 2},
        mode="inputs",
    ),
    "hidden states with several streams after the positions": Case(
        family="HYV4ForCausalLM", prompts=((11,),), options={"max_new_tokens": 4, **STATES}
    ),
    "hidden states with several streams before the rows": Case(
        family="Gemma3nForCausalLM",
        prompts=((11,), (12,), (13,), (14,)),
        options={"max_new_tokens": 8, **STATES},
    ),
    "hidden states after the cache is dropped": Case(
        family="phi3 longrope",
        prompts=((47, 50, 52, 32, 36, 51, 20, 42, 51, 47, 6, 11, 45, 17), (51, 18)),
        options={"max_new_tokens": 8, **STATES},
    ),
    "a turn by positions, which gaps in the mask keep below the slots": Case(
        family="llama longrope",
        prompts=((4, 24, 38, 4),),
        mask="holes",
        options={"max_new_tokens": 20},
    ),
    "a prefill's draft up to where scaled frequencies are set back": Case(
        family="llama dynamic",
        shape=3,
        attention="eager",
        prompts=((39, 37, 39, 37, 39, 37, 39, 37, 39, 37, 39, 37),),
        options={"max_new_tokens": 16, "encoder_repetition_penalty": 0.7},
    ),
    "a padding id in a draft, which takes no position": Case(
        seed=6002024,
        family="m2m100",
        shape=2,
        prompts=((47, 49), (13,), (42, 42, 42, 42, 42, 42, 42, 42)),
        options={"max_new_tokens": 24},
        drafter="bushy",
        settings={"gamma": 8},
    ),
    "branches after positions that a model with ALiBi does not look at": Case(
        family="mpt",
        shape=3,
        prompts=((7, 14, 28, 17, 47, 18, 33),),
        inputs="offset positions",
        options={"max_new_tokens": 22, **DICT, "output_logits": True},
    ),
    "a padding id of -1 beside an ended row": Case(
        prompts=((40, 34, 4, 10, 38, 40, 34, 4, 10, 38, 40, 34), PROMPT),
        options={
            "max_new_tokens": 2,
            "eos_token_id": [15, 9, 27, 55, 31, 6],
            "pad_token_id": -1,
            **DICT,
        },
    ),
    "a criterion that raises where a draft would pass an ended row": Case(
        shape=2,
        prompts=((21, 28, 21, 28, 21, 28, 21, 28, 21, 28, 21, 28, 21), (35, 46, 44, 28, 23)),
        options={
            "max_new_tokens": 6,
            "do_sample": True,
            "eos_token_id": [34, 36, 20, 38, 51, 28],
            "pad_token_id": -1,
        },
        criteria=("raises",),
        settings={"gamma": 3},
    ),
    "hidden states that a model does not make": Case(
        family="own inputs", options={"max_new_tokens": 16, **STATES}
    ),
    "attentions over a static cache that a width makes larger": Case(
        family="gptj",
        prompts=((52,),),
        options={
            "max_new_tokens": 1,
            "cache_implementation": "static",
            **DICT,
            "output_attentions": True,
        },
        settings={"width": 16},
    ),
    "a prefill in chunks that fails over sliding windows": Case(
        seed=6000179,
        family="gpt-oss",
        shape=1,
        attention="eager",
        cache="begun",
        options={
            "max_new_tokens": 24,
            "do_sample": True,
            "prefill_chunk_size": 1,
            "num_return_sequences": 3,
        },
        drafter="oracle",
        settings={"gamma": 1},
        entry="enabled",
    ),
    "use_cache=None where speculation is refused": Case(
        family="MoshiForCausalLM",
        prompts=((6,),),
        options={"max_new_tokens": 3, "use_cache": None},
        settings={"unsupported": "plain"},
    ),
    "a prompt wholly inside the cache": Case(cache="whole"),
    "a prompt wholly inside the cache, learned positions": Case(
        family="gpt2", cache="whole", drafter="half"
    ),
    "a prompt wholly inside the cache, positions by ALiBi": Case(
        family="bloom", cache="whole", drafter="bushy", settings={"tree": 6}
    ),
    "beams without a finite score, in half precision by default": Case(
        default_dtype="float16",
        options={"max_new_tokens": 16, "num_beams": 4},
        processors=("nothing",),
    ),
    "padding of an earlier turn that is no token": Case(
        family="qwen2",
        shape=2,
        prompts=((12,), (5, 6, 7, 8, 5, 6, 7, 9, 5, 6)),
        turns=2,
        options={
            "max_new_tokens": 8,
            "eos_token_id": 44,
            "pad_token_id": -1,
            "num_beams": 4,
            "length_penalty": 0.0,
            **DICT,
        },
    ),
    "convolutions of a cache that inference mode continues": Case(
        family="Lfm2MoeForCausalLM", cache="begun", options={"max_new_tokens": 8}, mode="calls"
    ),
    "attentions over static windows, decoded as the baseline": Case(
        family="gemma3 image",
        attention="eager",
        options={
            "max_new_tokens": 8,
            "cache_implementation": "static",
            **DICT,
            "output_attentions": True,
        },
        settings={"unsupported": "plain"},
    ),
    "masks that differ between heads, in half precision": Case(
        family="doge", dtype="bfloat16", options={"max_new_tokens": 40}, settings={"gamma": 3}
    ),
    "joint steps of a prompt that is wholly inside the cache": Case(
        mask="left", cache="whole", entry="stepwise", steps="joint"
    ),
    "left padding over a fixed width": Case(
        family="git image",
        attention="eager",
        mask="left",
        drafter="half",
        settings={"width": 16, "gamma": 5},
        options={"max_new_tokens": 24},
    ),
    "a model that widens its mask after the prefill": Case(family="git image", mask="left"),
    "two turns of a ragged batch": Case(
        prompts=(PROMPT, (3, 4, 3, 4, 3, 4, 9, 3, 7, 7, 8, 9)),
        turns=2,
        options={"max_new_tokens": 16, **DICT},
    ),
    "masks for every row of a short static cache": Case(
        family="xglm", prompts=((15, 53), (19, 19)), cache="static", options={"max_new_tokens": 2}
    ),
    "memory of all that beams return": Case(
        family="bart",
        prompts=(PROMPT, PROMPT[::-1]),
        attention="eager",
        options=STATES24 | {"output_attentions": True, "output_scores": True, "num_beams": 2},
    ),
    "beams after a kept cache, whose rows are other beams": Case(
        family="Ernie4_5_MoeForCausalLM",
        turns=2,
        options={
            "max_new_tokens": 24,
            "eos_token_id": 39,
            "pad_token_id": 0,
            **DICT,
            "num_beams": 3,
        },
        drafter="ngram",
    ),
    "beams under another default dtype": Case(
        family="PegasusForConditionalGeneration",
        default_dtype="float16",
        options={"max_new_tokens": 24, "eos_token_id": 51, "num_beams": 3, "early_stopping": True},
        drafter="liar",
        settings={"gamma": 8},
    ),
    "a generation opened in inference mode and stepped outside": Case(
        entry="stepwise", mode="calls", steps="outside", options={"max_new_tokens": 40}
    ),
    "joint steps of generations that were opened in different modes": Case(
        seed=3, entry="stepwise", mode="both", steps="joint", drafter="half"
    ),
    "scores without a distribution, before which nothing is drawn": Case(
        seed=2,
        options={"max_new_tokens": 16, "do_sample": True},
        processors=("nothing",),
        drafter="half",
    ),
    "scores without a distribution under a lossy rule, before a second turn that fails": Case(
        turns=2,
        options={"max_new_tokens": 24, "cache_implementation": "static", **DICT},
        processors=("nothing",),
        settings={"verification": "typical"},
    ),
    "a row of a batch without a distribution": Case(
        seed=4,
        prompts=(PROMPT, (7, 8, 9, 7, 8)),
        options={"max_new_tokens": 16, "do_sample": True},
        processors=("nan row",),
    ),
    "ids that plain decoding looks up and does not find": Case(
        prompts=((10, 28, 10, 28, 10, 28), (35, 29)),
        turns=2,
        options={"max_new_tokens": 8, "num_beams": 4, **DICT},
        criteria=("rows",),
    ),
    "scores of beams under another default dtype": Case(
        default_dtype="float64",
        options={**{"max_new_tokens": 1, "num_beams": 3}, **DICT, **{"output_scores": True}},
    ),
    "convolutions of hybrid layers with windows that inference mode continues": Case(
        family="ZayaForCausalLM", turns=2, options={"max_new_tokens": 16, **DICT}, mode="turns"
    ),
    "experts whose forwards round by their width": Case(
        family="GraniteMoeForCausalLM",
        prompts=((49, 18, 54, 28, 26, 17, 40, 56, 56, 8, 4, 12, 52, 12, 47, 28, 26, 56, 18, 43),),
        turns=2,
        options={
            **{"max_new_tokens": 24, "repetition_penalty": 1.3},
            **DICT,
            **{"output_logits": True},
        },
        drafter="ngram(sample=true)",
        settings={"tree": 20},
    ),
    "a hook that shortens the returned cache of a padded batch": Case(
        attention="eager",
        prompts=((7, 8), (22, 45, 10, 52, 36) * 16),
        options={"max_new_tokens": 16, **DICT, "output_attentions": True},
        hooks="compress by forward",
    ),
}
