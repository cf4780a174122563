"""Counts texts by tiktoken, the reference tokenizer. Writes tests/fixtures/token_counts.json.

pip install tiktoken==0.14.0 && python count_texts.py > ../fixtures/token_counts.json
"""

import base64
import gzip
import json
import pathlib
import random

import tiktoken
import tiktoken_ext.openai_public as public

VOCABULARIES = pathlib.Path(__file__).parent.parent.parent / "third-party/vocabularies"


def encoding(name, make):
    ranks = {}
    for line in gzip.open(VOCABULARIES / f"{name}.tiktoken.gz", "rt"):
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    # The package downloads its vocabularies; these are the same files.
    public.load_tiktoken_bpe = lambda *_, **__: ranks
    made = make()
    return tiktoken.Encoding(name, pat_str=made["pat_str"], mergeable_ranks=ranks, special_tokens={})


ENCODINGS = {
    "o200k": encoding("o200k_base", public.o200k_base),
    "cl100k": encoding("cl100k_base", public.cl100k_base),
}

PARTS = """
the THE The quick browN fox's it'S DON'T we’ll I'd'd runner gateway ledger acknowledgement antidisestablishmentarianism HTTPServer
getUserById snake_case_name __init__ 0 7 12 123 1234 1234567 3.14 1e-9 ½ Ⅷ ٣٤٥ ½½½½ ! ?! ... … --- ==== //// ->> /path/to/file
https://example.com/a?b=c&d=%20 user@example.com {"a":1,"b":[true,null]} fn<T>(x:&T)->Option<u8>{} #include<stdio.h> <|endoftext|> <|im_start|>
我们 网关把每一个智能体运行的结果都写入账本。 ゲートウェイ は エージェント 한국어 텍스트 สวัสดีครับ नमस्ते Ελληνικά Привет مرحبا שלום Tiếng Việt
😀 👩‍👩‍👧‍👦 🇳🇴 ǅ ʰ
""".split()
ESCAPED = ["e\u0301", "\u0301", "\u200b", "\u00a0", "\u3000", "\ufeff", "\x00", "\x7f", "\u2028", "\u0085", "\x0b", "\x0c"]
SPACES = [" ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", " \t ", "\n   ", "   \n", "\n \n ", "        "]

random.seed(7)
cases = [(part, 1) for part in PARTS + ESCAPED + SPACES]
for _ in range(160):
    chosen = [random.choice(random.choice([PARTS, ESCAPED, SPACES, SPACES])) for _ in range(random.randint(2, 24))]
    cases.append(("".join(chosen), 1))
for _ in range(60):
    blocks = random.choices([(32, 126), (160, 0x2FFF), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF)], k=random.randint(1, 40))
    cases.append(("".join(chr(random.randint(*block)) for block in blocks), 1))
for part in ["a", "ab", " ", "\n", "=", "你", "é", "9", "!a", "lorem ipsum ", "A"]:
    cases += [(part, repeat) for repeat in (2, 3, 7, 64, 500, 3000)]

print("[")
for number, (text, repeat) in enumerate(cases):
    counted = {"text": text, "repeat": repeat}
    counted |= {name: len(it.encode_ordinary(text * repeat)) for name, it in ENCODINGS.items()}
    print(json.dumps(counted, ensure_ascii=True), end=",\n" if number < len(cases) - 1 else "\n")
print("]")
