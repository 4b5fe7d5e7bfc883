#!/usr/bin/env python3
"""What llvm-mca expects of the inner loop of each Arm tile: `./dev arm-model` builds the tiles and runs this.

The loop is taken from the compiled object: of the innermost loops of the function behind a record, that of a
tile of all rows. The peak is what the same model gives for such multiply-adds alone, none waiting for another.
It is a model of pipelines that are never short of instructions, with all loads from the first-level cache.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
objects = None  # the folder of the compiled tiles
README = ROOT / "bench/README.md"
BEGIN, END = "<!-- arm_model: begin -->", "<!-- arm_model: end -->"

# Bits of a vector register, and of an SVE one.
CPUS = {"neoverse-n1": (128, 0), "neoverse-v1": (128, 256), "neoverse-v2": (128, 128)}
# What the CPUs lack, by the end of the file's name.
LACKS = {"neoverse-n1": ("sve", "bf16")}
TILES = {  # what it is: file, a part of the function's name, multiply-adds (those of the largest tile)
    "f32 8×12 Neon": ("gemm_neon", "Neon, false>"),
    "f32 8×12 Neon, outer products": ("gemm_neon", "Neon, true>"),
    "bf16 8×12 Neon, widened": ("gemm_neon", "Bf16"),
    "bf16 4×24 Neon, BFMMLA": ("gemm_neon_bf16", "Bf16"),
    "bf16 4×24 Neon, 16 columns": ("gemm_neon_bf16", "Bf16", 16),
    "bf16 4×24 Neon, 8 columns": ("gemm_neon_bf16", "Bf16", 8),
    "f32 8×3VL SVE": ("gemm_sve", "F32<false>"),
    "f32 8×3VL SVE, outer products": ("gemm_sve", "F32<true>"),
    "bf16 4×6VL SVE, BFMMLA": ("gemm_sve_bf16", "Bf16"),
    "bf16 4×6VL SVE, 4VL columns": ("gemm_sve_bf16", "Bf16", 16),
    "bf16 4×6VL SVE, 2VL columns": ("gemm_sve_bf16", "Bf16", 8),
}
BRANCH = re.compile(r"((?:b\.\w+|bl?r?|ret|cbn?z|tbn?z)\b\s*(?:\w+, )?(?:#\d+, )?)(?:([0-9a-f]+) <)?")
MULTIPLY_ADD = re.compile(r"(fmla|bfmmla)\s+(\w)")
# Multiplications for each 128 bits of a vector.
MACS = {"fmla": 4, "bfmmla": 16}


def functions(file):
    """The functions of an object: name, and lines of (address, instruction)."""
    text = subprocess.run(
        ["aarch64-linux-gnu-objdump", "-d", "-C", "--no-show-raw-insn", objects / f"{file}.cpp.o"],
        check=True, capture_output=True, text=True).stdout
    for block in re.split(r"\n\n", text):
        head = re.match(r"[0-9a-f]+ <(.*)>:\n", block)
        if head:
            lines = re.findall(r"^\s*([0-9a-f]+):\t(.*?)\s*(?://.*)?$", block, re.M)
            yield head[1], [(int(address, 16), instruction) for address, instruction in lines]


def inner_loops(lines):
    """The instructions of each straight loop, its branch back to the label `again`."""
    begin = {address: i for i, (address, _) in enumerate(lines)}
    last = -1  # branch so far
    for end, (address, instruction) in enumerate(lines):
        branch = BRANCH.match(instruction)
        if not branch:
            continue
        target = begin.get(int(branch[2], 16)) if branch[2] else None
        if target is not None and last < target <= end:
            yield [i for _, i in lines[target:end]] + [branch[1] + "again"]
        last = end


def hottest_loop(file, kernel, count=None):
    """The loop of the tile with the most rows: of those that multiply most, or so often, the one that joins or
    else loads most."""
    loops = [loop for name, lines in functions(file) if kernel in name for loop in inner_loops(lines)]
    loops = [loop for loop in loops if count in (None, multiply_adds(loop))]
    if not loops:
        sys.exit(f"arm_model: no loop of {kernel} in {file}")

    def having(loop, *names):
        return sum(i.startswith(names) for i in loop)

    return max(loops, key=lambda loop: (multiply_adds(loop), having(loop, "zip", "trn"), having(loop, "ld")))


def multiply_adds(loop):
    return sum(bool(MULTIPLY_ADD.match(i)) for i in loop)


def cycles(instructions, cpu):
    """Of an iteration, in a steady state."""
    iterations = 1000
    source = "\n".join(["again:", *instructions, ""])
    result = subprocess.run(
        ["llvm-mca-19", "-mtriple=aarch64", f"-mcpu={cpu}", f"-iterations={iterations}",
         "-instruction-info=0", "-resource-pressure=0"],
        input=source, capture_output=True, text=True)
    total = re.search(r"Total Cycles:\s+(\d+)", result.stdout)
    if not total:
        sys.exit(f"arm_model: llvm-mca does not know the loop on {cpu}:\n{result.stderr}{source}")
    return int(total[1]) / iterations


def macs(instructions, cpu):
    neon, sve = CPUS[cpu]
    return sum(MACS[m[1]] * (sve if m[2] == "z" else neon) // 128
               for m in map(MULTIPLY_ADD.match, instructions) if m)


def peak(loop, cpu):
    """MAC a cycle of the loop's kind of multiply-add, alone."""
    one = next(i for i in loop if MULTIPLY_ADD.match(i))
    kind, register = MULTIPLY_ADD.match(one).groups()
    if kind == "bfmmla":
        operands = "{r}{i}.s, {r}30.h, {r}31.h" if register == "z" else "{r}{i}.4s, {r}30.8h, {r}31.8h"
    else:
        operands = "{r}{i}.s, p0/m, {r}30.s, {r}31.s" if register == "z" else "{r}{i}.4s, {r}30.4s, {r}31.4s"
    alone = [f"{kind} " + operands.format(r=register, i=i) for i in range(24)]
    return macs(alone, cpu) / cycles(alone, cpu)


def table():
    rows = ["| tile | CPU | instructions | multiply-adds | cycles | MAC a cycle | of | share |", "|---|---|---|---|---|---|---|---|"]
    for title, place in TILES.items():
        file, loop = place[0], hottest_loop(*place)
        for cpu in CPUS:
            if any(part in file for part in LACKS.get(cpu, ())):
                continue
            time = cycles(loop, cpu)
            rate, best = macs(loop, cpu) / time, peak(loop, cpu)
            rows.append(f"| {title} | {cpu} | {len(loop)} | {multiply_adds(loop)} | {time:.1f} "
                        f"| {rate:.1f} | {best:.1f} | {100 * rate / best:.0f}% |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update-readme", action="store_true", help="write the table into bench/README.md")
    parser.add_argument("--show", metavar="TILE", choices=TILES, help="print the loop of one tile")
    parser.add_argument("--build", type=Path, default=ROOT / "build/aarch64", help="where the tiles were built")
    arguments = parser.parse_args()
    global objects
    objects = arguments.build / "CMakeFiles/quern_kernels.dir/ops/kernels/gemm/tiles"
    if arguments.show:
        print("\n".join(hottest_loop(*TILES[arguments.show])))
        return
    text = table()
    print(text)
    if arguments.update_readme:
        page = README.read_text()
        begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
        README.write_text(f"{page[:begin]}\n{text}\n{page[end:]}")


if __name__ == "__main__":
    main()
