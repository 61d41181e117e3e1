"""Runs a program on an emulated CPU with AVX-512 and AMX: `run.py PROGRAM [ARGUMENT...]`.

Prints the program's output and exits with its exit code. setup.sh builds the emulator. Linux boots
with a RAM disk that holds the program and its libraries, each at its own path.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MACHINE = Path(__file__).resolve().parents[2] / "build" / "emulate"

# Bochs lacks the fast-string bit of IA32_MISC_ENABLE, so Linux must not use FSRM.
_KERNEL_OPTIONS = "console=ttyS0 quiet clearcpuid=fsrm mitigations=off nokaslr no5lvl"

_BOOT_MENU = f"""\
DEFAULT linux
PROMPT 0
LABEL linux
  KERNEL vmlinuz
  APPEND initrd=initrd {_KERNEL_OPTIONS}
"""

# Instructions per emulated second; it only affects the rate of the kernel's clock ticks.
_INSTRUCTIONS_PER_SECOND = 50_000_000

_BOCHS_OPTIONS = """\
cpu: model={model}, ips={ips}, ignore_bad_msrs=1, reset_on_triple_fault=0
memory: guest={memory}, host={memory}
romimage: file={root}/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file={root}/usr/share/vgabios/vgabios.bin
display_library: nogui
ata0-master: type=cdrom, path={folder}/boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev={folder}/console.txt
log: {folder}/bochs.txt
panic: action=fatal
error: action=ignore
port_e9_hack: enabled=1
"""


class EmulatorError(Exception):
    """The emulator is not set up, or stopped before the program ended."""


def _cpio_entry(path: str, mode: int, content: bytes) -> bytes:
    """One file of an archive in the "newc" format, see cpio(5)."""
    numbers = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + path.encode() + b"\0"
    return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)


def pack_disk(files: dict[Path, bytes]) -> bytes:
    """An initial disk with executable files at absolute paths, and the folders they need."""
    folders = sorted({folder for path in files for folder in path.parents} - {Path("/")})
    entries = [_cpio_entry(str(folder)[1:], 0o040755, b"") for folder in folders]
    entries += [_cpio_entry(str(path)[1:], 0o100755, content) for path, content in files.items()]
    return b"".join((*entries, _cpio_entry("TRAILER!!!", 0, b"")))


def libraries_of(program: Path) -> list[Path]:
    """Files that the dynamic linker loads for a program, itself included; none if it is static."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True)
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", done.stdout)]


def _make_boot_image(folder: Path, disk: bytes) -> None:
    menu = folder / "iso" / "isolinux"
    menu.mkdir(parents=True)
    (menu / "initrd").write_bytes(disk)
    (menu / "isolinux.cfg").write_text(_BOOT_MENU)
    for file in ("vmlinuz", "root/usr/lib/ISOLINUX/isolinux.bin"):
        shutil.copy(MACHINE / file, menu)
    shutil.copy(MACHINE / "root/usr/lib/syslinux/modules/bios/ldlinux.c32", menu)
    boot = ("-b", "isolinux/isolinux.bin", "-c", "isolinux/boot.cat", "-no-emul-boot")
    options = (*boot, "-boot-load-size", "4", "-boot-info-table")
    image = ("-o", folder / "boot.iso", folder / "iso")
    done = subprocess.run(
        ["xorriso", "-as", "mkisofs", *options, *image], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise EmulatorError(f"xorriso could not make a boot image\n{done.stderr}")


def run(command: list[str], files: list[Path], *, model: str, memory: int) -> int:
    """Run the program; return its exit code, 128 and more for a signal.

    Args:
        files: further files that the program reads, packed at their own paths.
        model: CPU model of Bochs.
        memory: MiB, including the RAM disk.

    Raises:
        EmulatorError: the emulator is not built, or stopped before the program ended.
    """
    if not (MACHINE / "stamp").exists():
        raise EmulatorError("the emulator is not built: run kernels/emulate/setup.sh")
    program = Path(command[0]).resolve()
    packed = [program, *libraries_of(program), *(file.resolve() for file in files)]
    arguments = "".join(f"{argument}\0" for argument in (program, *command[1:]))
    disk = {path: path.read_bytes() for path in packed}
    disk[Path("/init")] = (MACHINE / "init").read_bytes()
    disk[Path("/arguments")] = arguments.encode()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_boot_image(folder, pack_disk(disk))
        options = _BOCHS_OPTIONS.format(
            model=model,
            ips=_INSTRUCTIONS_PER_SECOND,
            memory=memory,
            root=MACHINE / "root",
            folder=folder,
        )
        (folder / "bochsrc").write_text(options)
        code = _run_bochs(folder)
        if code is None:
            console = folder / "console.txt"
            last = console.read_text(errors="replace")[-2000:] if console.exists() else ""
            raise EmulatorError(f"the machine stopped before the program did\n{last}")
        return code


def _run_bochs(folder: Path) -> int | None:
    """Print the program's output and return its exit code; None if it did not end."""
    bochs = [f"{MACHINE}/bochs/bochs", "-q", "-f", f"{folder}/bochsrc"]
    with subprocess.Popen(
        bochs, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line == b"[start]\n":
                    break
            for line in process.stdout:
                if end := re.fullmatch(rb"\[exit (\d+)\]\n", line):
                    return int(end[1])
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
        finally:
            process.kill()
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default="sapphire_rapids", help="CPU model of Bochs (default: sapphire_rapids)."
    )
    parser.add_argument(
        "--memory", type=int, default=1024, metavar="MIB", help="Memory in MiB (default 1024)."
    )
    parser.add_argument(
        "--file",
        type=Path,
        action="append",
        default=[],
        help="File that the program reads; may be repeated.",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="PROGRAM [ARGUMENT...]")
    options = parser.parse_args()
    if not options.command:
        parser.error("PROGRAM is missing")
    try:
        return run(options.command, options.file, model=options.model, memory=options.memory)
    except EmulatorError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 125


if __name__ == "__main__":
    sys.exit(main())
