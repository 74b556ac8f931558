"""Every wrong setting is refused at start, with a message that says where it stands and what to do."""

import os
from pathlib import Path

import pytest

from mesh.config.arrangement import default_workers, this_machine
from mesh.config.config_checks import ConfigError
from mesh.config.services import GatewayConfig, MeshConfig
from mesh.config.settings import read_settings
from mesh.config.worker_config import DecodeConfig, PrefillConfig
from tests.unit.mesh.config_file import write


def test_without_any_source_the_defaults_stand() -> None:
    chosen = default_workers(this_machine(), pool_bytes=DecodeConfig().pool_bytes, weights_bytes=0)
    prefill, decode = chosen
    assert read_settings().mesh() == MeshConfig(prefill_workers=prefill, decode_workers=decode, by_machine=True)


def test_a_tier_overrides_what_worker_says_for_both(tmp_path: Path) -> None:
    settings = read_settings(write(tmp_path, "[worker]\npage_tokens = 64\n[decode]\npage_tokens = 16\n"))
    assert (settings.prefill().page_tokens, settings.decode().page_tokens) == (64, 16)


def test_environment_wins_over_the_file_and_the_command_line_over_both(tmp_path: Path) -> None:
    file = write(tmp_path, "[decode]\npool_pages = 1\npage_tokens = 16\nchunk_tokens = 7\n")
    environment = {"BATON_WORKER_POOL_PAGES": "2", "BATON_DECODE_PAGE_TOKENS": "64", "PATH": "/bin"}
    decode = read_settings(file, environment, {"decode.page_tokens": "32"}).decode()
    assert (decode.pool_pages, decode.page_tokens, decode.chunk_tokens) == (2, 32, 7)


def test_values_become_the_types_of_their_fields(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    environment = {
        "BATON_MODEL": str(tmp_path),
        "BATON_DECODE_MAY_KILL": "false",
        "BATON_WORKER_TRANSPORTS": "tcp, shm",
        "BATON_PREFILL_POOL_PAGES": "12",
    }
    settings = read_settings(environment=environment)
    assert settings.gateway().model == tmp_path
    assert settings.decode().may_kill is False
    assert settings.prefill().transports == ("tcp", "shm")
    assert settings.prefill().pool_pages == 12


def test_what_a_worker_allows_follows_its_device() -> None:
    cpu, cuda = DecodeConfig(), DecodeConfig(device="cuda")
    assert (cpu.allowed_transports, cuda.allowed_transports) == (("shm", "rdma", "tcp"), ("cuda_ipc", "nccl"))
    assert DecodeConfig(transports=("tcp",)).allowed_transports == ("tcp",)


def test_an_error_names_its_setting_once() -> None:
    with pytest.raises(ConfigError, match=r"^command line, model: /nonexistent is not a Hugging Face model folder"):
        read_settings(overrides={"model": "/nonexistent"}).gateway()
    with pytest.raises(ConfigError, match=r"^environment, BATON_GATEWAY_LOCAL: 'no' is not one of"):
        read_settings(environment={"BATON_GATEWAY_LOCAL": "no"}).gateway()


def test_a_relative_model_folder_starts_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    assert read_settings(write(tmp_path, 'model = "tiny"')).gateway().model_name == "tiny"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[decode]\npage_token = 1", r"baton.toml: unknown key 'page_token' in \[decode\]; did you mean 'page_tokens'"),
        ("[decoder]\n", r"baton.toml: unknown section \[decoder\]; did you mean 'decode'"),
        ("modle = 'x'", "baton.toml: unknown key 'modle'; did you mean 'model'"),
        (
            "[gateway]\nhttp = 'x'",
            r"unknown key 'http' in \[gateway\]; did you mean 'http_address' or 'http_hosts' or 'http_tls_ca'\?",
        ),
        ("[worker]\nnonsense = 1", r"unknown key 'nonsense' in \[worker\]\. Valid: "),
        ("model = 'nowhere'", "baton.toml, model: .*nowhere is not a Hugging Face model folder"),
        ("[decode]\npage_tokens = 33", r"baton.toml, \[decode\] page_tokens: 33 is not one of 16, 32, 64"),
        ("[worker]\npage_tokens = '32'", r"\[worker\] page_tokens: expected a whole number, got '32'"),
        ("[decode]\nmax_batch = true", "expected a whole number, got True"),
        ("[worker]\ndrain_seconds = true", r"\[worker\] drain_seconds: expected a number, got True"),
        ("[worker]\nprefix_cache = 1", "expected true or false, got 1"),
        ("[worker]\ntransports = 'tcp'", "expected a list of strings, got 'tcp'"),
        ("[worker]\ntransports = ['pigeons']", "'pigeons' is not one of shm, rdma, tcp"),
        (
            "[worker]\ntransports = ['cuda_ipc']",
            '\'cuda_ipc\' goes with device = "cuda"; on "cpu" take one of shm, rdma, tcp',
        ),
        ("[worker]\ntransports = []", "transports: allow at least one of shm, rdma, tcp"),
        ("[worker]\ndevice = 'gpu'", "'gpu' is not one of cpu, cuda"),
        ("[worker]\ndevice = 'cuda'\nproduct_path = 'amx'", "'amx' goes with device = \"cpu\"; .* one of auto, fast"),
        ("[worker]\nproduct_path = 'fast'", "product_path: 'fast' goes with device = \"cuda\""),
        ("[worker]\ngateways = ['here']", "'here' is not host:port"),
        ("[prefill]\nstep_tokens = 64", r"step_tokens: 64 is less than chunk_tokens \(512\)"),
        ("[gateway]\nhttp_address = '127.0.0.1:70000'", "'127.0.0.1:70000' is not host:port"),
        ("[mesh]\nprefill_workers = 0\n[gateway]\nlocal = 'never'", "leaves no worker to prefill"),
        ("draft = 'nowhere'", "baton.toml, draft: .*nowhere is not a Hugging Face model folder"),
        ("[worker]\nspeculation = 'on'", "speculation: 'on' is not one of auto, draft, lookup, off"),
        ("[decode]\ndraft_tokens = 0", "draft_tokens: 0 is not between 1 and 64"),
        ("[decode]\nitl_target_ms = -1", "itl_target_ms: -1 is not between 0 and 60000; 0 sets no target"),
        ("[decode]\nitl_target_ms = nan", "itl_target_ms: nan is not between 0 and 60000; 0 sets no target"),
        ("[prefill]\ndraft_tokens = 4", r"unknown key 'draft_tokens' in \[prefill\]"),
        (
            "tls_ca = 'baton.toml'",
            "tls_certificate: is missing beside tls_ca; TLS takes tls_certificate, tls_key, tls_ca",
        ),
        ("tls_certificate = 'baton.toml'\ntls_ca = 'baton.toml'", "tls_key: is missing beside tls_certificate, tls_ca"),
        (
            "tls_certificate = 'baton.toml'\ntls_key = 'nowhere.pem'\ntls_ca = 'baton.toml'",
            "baton.toml, tls_key: there is no file .*nowhere.pem",
        ),
        ("[decode]\ntls_key = 'baton.toml'", "tls_certificate: is missing beside tls_key"),
        (
            "tls_certificate = '.'\ntls_key = 'baton.toml'\ntls_ca = 'baton.toml'",
            "baton.toml, tls_certificate: .* is a folder; name the PEM file in it",
        ),
        (
            "[decode]\ntls_certificate = 'baton.toml'\ntls_key = 'baton.toml'\ntls_ca = 'baton.toml'",
            "tls_ca: decode would speak TLS, gateway and prefill plain text; set .* at the top of the file",
        ),
        ("[worker]\naddress = '0.0.0.0:7001'", "address: 0.0.0.0:7001 listens on every interface; set advertise_host"),
        ("[worker]\naddress = '[::]:7001'", "listens on every interface; set advertise_host"),
        ("[mesh", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_the_key_and_the_remedy(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(write(tmp_path, text)).mesh()


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read"):
        read_settings(Path("nowhere.toml"))


def test_a_misspelt_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match="BATON_DECODE_PAGE_TOKEN; did you mean 'BATON_DECODE_PAGE_TOKENS'"):
        read_settings(environment={"BATON_DECODE_PAGE_TOKEN": "32"})


@pytest.mark.parametrize("text", ["_", "1__2", "_1", "1_", "--1", "-", "\u0661"])
def test_a_variable_that_is_no_whole_number_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="environment, BATON_DECODE_MAX_BATCH: expected a whole number, got"):
        read_settings(environment={"BATON_DECODE_MAX_BATCH": text}).decode()


def test_a_variable_may_group_its_digits() -> None:
    assert read_settings(environment={"BATON_DECODE_MAX_BATCH": "1_024"}).decode().max_batch == 1024


def test_variables_that_kubernetes_injects_are_not_ours() -> None:
    injected = {"BATON_GATEWAY_PORT_50051_TCP": "tcp://10.0.0.1:50051", "BATON_SERVICE_HOST": "10.0.0.1"}
    assert read_settings(environment=injected).gateway() == GatewayConfig()


def test_a_misspelt_override_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"command line: unknown key 'local' in \[decode\]"):
        read_settings(overrides={"decode.local": "never"})


def test_threads_are_shared_among_the_workers_of_a_host() -> None:
    alone = DecodeConfig().thread_count
    assert DecodeConfig(workers_on_host=10**3).thread_count == 1
    assert DecodeConfig(workers_on_host=2).thread_count == max(1, alone // 2)
    assert PrefillConfig(threads=3, workers_on_host=2).thread_count == 3


def test_pinned_workers_of_a_host_take_cores_next_to_each_other() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert DecodeConfig().cores == ()
    first, second = (DecodeConfig(pin_threads=True, threads=1, workers_on_host=2, worker_on_host=i) for i in (0, 1))
    assert first.cores == (allowed[0],) and second.cores == (allowed[1 % len(allowed)],)
    many = DecodeConfig(pin_threads=True, threads=len(allowed) + 1)
    assert many.cores == (*allowed, allowed[0])
    with pytest.raises(ConfigError, match="worker_on_host: 2 is not between 0 and 1"):
        DecodeConfig(workers_on_host=2, worker_on_host=2)


def test_the_forced_product_path_is_no_setting_and_no_mistake() -> None:
    assert read_settings(environment={"BATON_PRODUCT_PATH": "pairs:avx2"}).decode().product_path == "auto"


def test_the_pool_is_counted_in_pages_or_in_bytes() -> None:
    unused = {"memory_bytes": 0, "weights_bytes": 0}
    assert DecodeConfig(pool_bytes=1000).pages(300, **unused) == 3
    assert DecodeConfig(pool_pages=7).pages(300, **unused) == 7
    with pytest.raises(ConfigError, match="pool_bytes: the pool's 1000 bytes hold no page of 1001 bytes"):
        DecodeConfig(pool_bytes=1000).pages(1001, **unused)


def test_the_tiers_may_have_pages_of_other_sizes(tmp_path: Path) -> None:
    mesh = read_settings(write(tmp_path, "[prefill]\npage_tokens = 16\n[decode]\npage_tokens = 64\n")).mesh()
    assert (mesh.prefill.page_tokens, mesh.decode.page_tokens) == (16, 64)


def test_a_draft_is_opened_only_where_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for speculation, opened in (("auto", tmp_path), ("draft", tmp_path), ("lookup", None), ("off", None)):
        for device in ("cpu", "cuda"):
            assert DecodeConfig(draft=tmp_path, speculation=speculation, device=device).draft_folder == opened
    assert PrefillConfig().draft_folder is None


def test_to_speculate_with_a_draft_there_must_be_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"speculation: .*`draft`"):
        DecodeConfig(model=tmp_path, speculation="draft")


def test_tls_files_are_set_once_for_all_services_and_a_section_may_name_others(tmp_path: Path) -> None:
    for name in ("certificate.pem", "key.pem", "ca.pem", "other.pem"):
        (tmp_path / name).write_text("")
    text = "tls_certificate = 'certificate.pem'\ntls_key = 'key.pem'\ntls_ca = 'ca.pem'\n"
    text += "[decode]\ntls_key = 'other.pem'\n"
    settings = read_settings(write(tmp_path, text))
    configs = (settings.gateway(), settings.prefill(), settings.decode())
    for config, key in zip(configs, ("key.pem", "key.pem", "other.pem"), strict=True):
        assert (config.tls_certificate, config.tls_key) == (tmp_path / "certificate.pem", tmp_path / key)
        assert config.tls_ca == tmp_path / "ca.pem"


def test_with_tls_nccl_and_rdma_move_pages_only_where_the_settings_name_them(tmp_path: Path) -> None:
    file = tmp_path / "any.pem"
    file.write_text("")
    tls = {"tls_certificate": file, "tls_key": file, "tls_ca": file}
    assert DecodeConfig(device="cuda", **tls).allowed_transports == ("cuda_ipc",)
    assert DecodeConfig(device="cuda", transports=("nccl",), **tls).allowed_transports == ("nccl",)
    assert DecodeConfig(**tls).allowed_transports == ("shm", "tcp")
    assert DecodeConfig(transports=("rdma",), **tls).allowed_transports == ("rdma",)


def test_a_tls_file_that_this_user_may_not_look_at_is_refused_by_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    file = tmp_path / "any.pem"
    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(ConfigError, match=f"tls_certificate: this user may not look into {tmp_path}"):
        GatewayConfig(tls_certificate=file, tls_key=file, tls_ca=file)


def test_without_prefill_workers_their_tls_settings_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "any.pem"
    file.write_text("")
    tls = {"tls_certificate": file, "tls_key": file, "tls_ca": file}
    MeshConfig(prefill_workers=0, gateway=GatewayConfig(**tls), decode=DecodeConfig(**tls))


def test_a_worker_with_a_thread_for_each_core_says_so() -> None:
    cores = len(os.sched_getaffinity(0))
    assert DecodeConfig(threads=cores).all_cores and DecodeConfig(threads=max(1, cores // 2)).all_cores == (cores < 2)


def test_more_threads_than_the_kernels_take_are_refused_before_a_worker_starts() -> None:
    most = 4 * (os.cpu_count() or 1) + 4
    assert DecodeConfig(threads=most).threads == most
    with pytest.raises(ConfigError, match=rf"threads: {most + 1} is not between 0 and {most}"):
        DecodeConfig(threads=most + 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quantize": "int2"}, r'quantize: "?\'?int2'),
        ({"quantize": "int8", "product_path": "fp32"}, "quantize: .*leave it out"),
        ({"quantize": "int8", "device": "cuda"}, 'quantize: .*set device = "cpu"'),
    ],
)
def test_weights_are_rounded_on_a_cpu_and_to_known_widths(fields: dict[str, str], message: str) -> None:
    assert DecodeConfig(quantize="int4").quantize == "int4"
    with pytest.raises(ConfigError, match=message):
        DecodeConfig(**fields)  # type: ignore[arg-type]
