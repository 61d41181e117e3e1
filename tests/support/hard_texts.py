"""Texts that tokenizers cut in unlike ways: code, digits, spaces, writing systems, signs."""

HARD_TEXTS = (
    "I'm he'LL we'Ve 'RE DON'T o'clock ''''`` isn\u2019t",
    "3 33 333 3333 33333 1234567890 3.14 1e-9 0xFF ½ ٣٤ 12,345,678.90 7th",
    "x==y!=z; a->b[0] += {'k': \"v\"} // # @ ~ ^ | ` $ %s \\\\n <tag/> &amp;",
    "def f(x):\n\treturn  x**2\n\n\n    # done\r\n\r\n  pass \n ",
    "   leading, trailing   ",
    " \n \n\n \t \t\t  \n   \n\n  end\n",
    "CamelCase HTTPServer aB Ab ABc éÉ ǅungla ÀB ﬁn",
    "Größe naïve e\u0301te\u0301 a\u030a ça übel ΑΒΓ αβγ Привет, мир!",
    "我想在apple工作1314151天～ 日本語テキスト。カタカナ、ひらがな！한국어ㄱㄴ 中文,英文",
    "កាន់តែ हिन्दी में عربي، نص ไทย বাংলা ༄ ᠮᠣᠩ",
    "🚀 (normal) 😶\u200d🌫️ 🦙🦙 👍🏽 ✅ ™ © ± × ÷ € → ∀",
    "\u3000全角　空白\u00a0nbsp\u2009thin\u200bzero \u2028line",
    "！？：；“”‘’—…【】《》〈〉、。～＃ＡＢ１２",
    "https://a.b/c?d=e#f user@host.org /usr/lib/x86_64 C:\\dir snake_case-kebab",
    "<|im_start|>user\nhi<|im_end|>\n<think> so </think><|endoftext|>",
    "------======= ....... !!!!!!?????? ((([[[{{{ }}}]]])))",
    "a" * 40 + " " * 17 + "\n" * 5 + "1" * 20,
)
