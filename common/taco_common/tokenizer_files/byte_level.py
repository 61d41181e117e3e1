"""The characters that byte-level vocabularies write bytes with."""


def _byte_level_alphabet() -> dict[str, int]:
    # GPT-2's alphabet: printable bytes are their own characters, others start at U+0100.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(moved)})
    return alphabet


BYTE_LEVEL_ALPHABET = _byte_level_alphabet()
