"""Renders a license as YAML for `GET /ls/view`, with the field names of the license file."""

import json
import re

from taco_license.document.license_file import License

# Texts that need no quotes in YAML. Numbers, `true` and similar words need them.
_PLAIN = re.compile(r"[A-Za-z](?:[\w ./()+-]*[\w/()+])?", re.ASCII)
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def render_view(license_: License) -> str:
    """The license as YAML. A YAML library would be too slow for licenses with 10,000 GPUs."""
    lines = [
        f"appid: {_scalar(license_.app_id)}",
        f"customer: {_scalar(license_.customer)}",
        f"accesslimit: {license_.access_limit}",
        "gpuinfos:",
    ]
    times = f"  issuedtime: {license_.issued_time}\n  expiredtime: {license_.expired_time}"
    lines += [
        f"- uuid: {_scalar(gpu.uuid)}\n  brand: {_scalar(gpu.brand)}\n{times}"
        for gpu in license_.gpus
    ]
    return "\n".join(lines) + "\n"


def _scalar(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)
