"""Real text as token ids, of any length: the licence of this project, tokenized by the server itself."""
import os
import random

import client
from harness import Config, ROOT


def corpus(port, piece=3000, enough=10000):
    """About 2,500 ids (or `enough`), asked for `piece` characters at a time: few enough for the context."""
    if Config.tiny:  # its vocabulary has 512 ids, and no text makes more sense than another
        return random.Random(1).choices(range(8, 512), k=2500)
    with open(os.path.join(ROOT, "LICENSE"), encoding="utf-8") as f:
        text = f.read()
    ids = []
    for at in range(0, len(text), piece):
        if len(ids) < enough:
            reply = client.complete(port, text[at:at + piece], 1)
            ids += reply.json()["choices"][0]["prompt_token_ids"]
    return ids


def slices(ids, lengths, shared):
    """A prompt of each length: every shared-th one starts where the text starts, so that such prompts
    have prefixes in common; the others start somewhere of their own."""
    prompts = []
    for i, n in enumerate(lengths):
        at = 0 if i % shared == 0 else (i * 37) % (len(ids) - n + 1)
        prompts.append(ids[at:at + n])
    return prompts
