import pytest

from tests.commands import invoke

MODEL = "--layers 4 --hidden 1024 --heads 8 --ffn 2816 --vocab 32000"
SIZE = f"size {MODEL} --gpu H200"
LAYOUT = f"layout {MODEL} --gpu H100"

# Typed words, and the words that the answer names.
CATALOGUE = (
    ("nothing", "There is no command 'nothing': choose from ab, accept"),
    ("lyout", "There is no command 'lyout': did you mean layout?"),
    ("tile_wave", "`pyperf-suite run tile_wave`"),
    ("run tile_wav", "Unknown probe 'tile_wav': did you mean tile_wave?"),
    ("run Baselin", "Unknown probe 'Baselin': did you mean baseline?"),
    ("run --proflie quick", "--profile"),
    ("run --list foo", "'foo'"),
    ("run tile_wave --profile quik", "Unknown profile 'quik': did you mean quick?"),
    ("run tile_wave --device cuda:x", "'cuda:x'"),
    ("run tile_wave -a tile=64", "'64'"),
    ("run tile_wave -a tlie=64x64x64", "There is no axis 'tlie' here: did you mean tile?"),
    ("run tile_wave --resume 2026", "2026"),
    ("run tile_wave --budget 0", "'--budget'"),
    ("run tile_wave --deadline nan", "nan is not a finite number"),
    ("run tile_wave --device tpu", "tpu"),
    ("run tile_wave --device cuda:31", "cuda:31"),
    ("run tile_wave -a dtype=int3", "dtype=int3 was requested: choose from"),
    ("run tile_wave -a k=0", "k=0"),
    ("run tile_wave -a k=-5", "k=-5"),
    ("run tile_wave -a k=four", "k=four"),
    ("run tile_wave -a k=2000000000", "GB of memory"),
    ("run tile_wave -a tile=7x7x7", "7"),
    ("run tile_wave -a workers=4096", "4096 workers"),
    ("run tile_wave -a schedule=magic", "magic"),
    ("run tile_wave -a tile", "'tile' is not an axis"),
    ("run tile_wave -a along=z", "along=z"),
    ("run tile_wave -a across=-1", "across=-1"),
    ("run tile_wave -a waves=99999999", "waves=99999999"),
    ("run tile_wave -a workers=99999999999999999999", "workers=99999999999999999999"),
    ("run tile_wave -a workers=0", "workers=0"),
    ("run tile_wave -a offset=-9999999", "no case with offset=-9999999"),
    ("run static_kernels -a compiler=gcc", "no case with compiler=gcc"),
    ("run tile_wave --results /proc/nowhere", "cannot be written"),
    ("run tile_wave -a tile_weave.k=8", "Unknown probe 'tile_weave'"),
    ("run --list optimiser", "did you mean optimizer?"),
    ("run tile_wave --deadline inf", "inf is not a finite number"),
    ("collectives --model layers=2,depth=3 --device cpu", "'layers=2,depth=3' knows no depth"),
    ("collectives --soak nan", "nan is not a finite number"),
    ("run absent.py", "no file absent.py"),
    ("collectives --ranks 0", "'--ranks'"),
    ("size", "--gpu H200"),
    ("size --gpu H200 --hidden 4096", "layers, heads, ffn, vocab are missing"),
    (f"{SIZE} --vary heads,", "--vary has a comma"),
    (f"{SIZE} --reach 200%", "--reach"),
    (f"{SIZE} --parameter-change x", "'x'"),
    ("size --config absent.json --gpu H200", "absent.json"),
    ("explain 1 2 --gpu H100", "'1 2'"),
    ("explain 1 1 1 --gpu H20O", "did you mean"),
    ("explain 0 1 1 --gpu H100", "m = 0"),
    (f"{LAYOUT} --gpus 8 --global-batch 8 --memory much", "'much'"),
    ("study absent.toml", "absent.toml"),
    ("ab --old tile=1 --new tile=2 tile_wave", "'1'"),
    ("compare latest latest", "no run in bench_results"),
    ("compare absent.json absent.json", "'absent.json'"),
    ("track --margin 200%", "'200%'"),
    ("history --machine none", "machine none"),
    ("export latest --results absent -o x.csv", "no run in absent"),
    ("report absent", "no results folder absent"),
    ("findings latest --results absent", "no run in absent"),
    ("calibrate absent", "absent"),
    ("watch", "--pid N"),
    ("watch --pid 0", "'--pid'"),
    ("watch --pid 4194305", "4194305"),
    ("watch --pid 1 -- train", "--pid N"),
    ("watch --interval 0 -- train", "'--interval'"),
    ("watch --interval -1 -- train", "'--interval'"),
    ("watch --step-pattern ( -- train", "regular expression"),
    ("watch --step-pattern step -- train", "no group"),
    ("watch --for 3 -- train", "--pid"),
    ("watch --dtype bf61 -- train", "bf16"),
    ("watch -- /nowhere/train", "/nowhere/train"),
    ("watch --config absent.json -- train", "absent.json"),
)


@pytest.mark.parametrize(("line", "named"), CATALOGUE, ids=[line for line, _ in CATALOGUE])
def test_what_is_mistyped_is_named_in_one_sentence(line, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = invoke(*line.split())
    assert answer.exit_code == 2, answer.output
    assert named in answer.stderr
    [sentence] = [each for each in answer.stderr.splitlines() if each and not each.startswith(("Usage: ", "Try "))]
    assert sentence.startswith("Error: ")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    # A watch makes its folder before it starts its program.
    assert line == "watch -- /nowhere/train" or not list(tmp_path.iterdir())
