"""Every name that traces carry: spans, events and attributes. No other file spells one.

`gen_ai.*`, `http.*`, `rpc.*` and `error.type` follow OpenTelemetry's semantic conventions (1.42, in development);
`baton.*` names are ours. docs/operations.md explains the span tree."""

# ---- spans, in the order of a request's life

CHAT = "chat"  # the generation; its name goes on with the model's: `chat {model}`
TEXT_COMPLETION = "text_completion"  # the same for a prompt that is no chat
EMBEDDINGS = "embeddings"  # the same for embeddings
PREPROCESS = "preprocess"  # read the body, parse, apply the template, tokenize, validate
ADMISSION = "admission"  # wait for a worker
ROUTE = "route"  # choose workers and send them the request; one for each attempt
PREFILL = "prefill"  # one attempt at a prefill worker
DECODE = "decode"  # one attempt at a decode worker
DISPATCH = "dispatch"  # the request's way from the gateway to a worker
QUEUE = "queue"  # wait for the worker's turn
KV_RESERVE = "kv.reserve"  # wait until decode gives pages for the landing
COMPUTE = "compute"  # steps compute the prompt
KV_SEND = "kv.send"  # prefill writes pages into decode's landing
KV_RECEIVE = "kv.receive"  # decode waits for the pages of its landing and checks them
GENERATE = "generate"  # steps yield tokens
SILENCE = "silence"  # from the last that came from a worker that died until the gateway noticed its death
DELIVER = "deliver"  # the way of a first token, a last token or a loss from the worker to the gateway
POSTPROCESS = "postprocess"  # detokenize, frame and send, from the last token's arrival to the last byte
LOOP_BLOCKED = "loop.blocked"  # the process's event loop stood still
ENGINE_STEP = "engine.step"  # one step of a worker, in a trace of its own

WORK = frozenset({QUEUE, COMPUTE, GENERATE})  # spans that may take long; every other one should be short

# ---- events

CHUNK = "chunk"  # a step has computed a chunk of the prompt
FIRST_TOKEN = "first_token"
PREEMPTED = "preempted"  # decode needed the pages for an older request
RESUMED = "resumed"  # this attempt goes on where an earlier one ended

# ---- attributes of the conventions

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
OUTPUT_TYPE = "gen_ai.output.type"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_CHOICES = "gen_ai.request.choice.count"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"  # seconds
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
URL_PATH = "url.path"
URL_SCHEME = "url.scheme"
RPC_SYSTEM = "rpc.system.name"
RPC_METHOD = "rpc.method"
RPC_STATUS = "rpc.response.status_code"
ERROR_TYPE = "error.type"
SERVICE_NAME = "service.name"

# ---- attributes of ours

REQUEST_ID = "baton.request_id"
STATUS = "baton.status"  # ok | error | cancelled
PATH = "baton.path"  # remote | local | resumed
TENANT = "baton.tenant"  # name of the tenant, where the gateway has keys
SLO_VIOLATED = "baton.slo.violated"  # the limits that were missed: ttft, itl
CHOICE = "baton.choice"  # index among the choices of one request
ATTEMPT = "baton.attempt"
ATTEMPTS = "baton.attempts"
WORKER = "baton.worker"
LOST = "baton.lost"  # why this attempt ended before the answer
DIED = "baton.worker.died"  # the worker died in this stage: the gateway wrote the span from what it had seen itself
RESUME = "baton.resume_seconds"  # from the last that came from a worker that died until the client's next token
WAITS_FOR = "baton.waits_for"  # what the request waits for: a decode worker, a prefill worker, room
CANDIDATES = "baton.route.candidates"
CHOSEN_PREFILL = "baton.route.prefill"
CHOSEN_DECODE = "baton.route.decode"
DECISION = "baton.route.decision"  # remote | local | resumed | none
PREFIX_PREFILL = "baton.route.prefix_tokens.prefill"  # prompt tokens that the worker's prefix cache holds
PREFIX_DECODE = "baton.route.prefix_tokens.decode"
REASON = "baton.route.reason"  # a value of RouteDecision (gateway/routing/router.py)
COST = "baton.route.cost_seconds"  # the sum of these parts:
COST_QUEUE = "baton.route.cost.queue_seconds"
COST_PREFILL = "baton.route.cost.prefill_seconds"
COST_TRANSFER = "baton.route.cost.transfer_seconds"
COST_INTERFERENCE = "baton.route.cost.interference_seconds"
COST_ROOM = "baton.route.cost.room_seconds"
TOKENS = "baton.tokens"
CACHED = "baton.cached_tokens"
STEPS = "baton.steps"
STEP = "baton.step"
ROWS = "baton.rows"
BATCH = "baton.batch"  # requests in a step; of a stage: in the fullest of its steps
SHARED_STEPS = "baton.steps.shared"  # steps of this stage that computed other requests too
ITL_P50 = "baton.itl.p50_seconds"  # time between two steps that yield tokens of the request
ITL_P99 = "baton.itl.p99_seconds"
DRAFTED = "baton.drafted_tokens"
ACCEPTED = "baton.accepted_tokens"
FLOOR = "baton.floor_seconds"  # least time of this stage on its hardware, for this request alone
KV_BYTES = "baton.kv.bytes"
KV_PAGES = "baton.kv.pages"
KV_TRANSPORT = "baton.kv.transport"
KV_HIDDEN = "baton.kv.hidden_share"  # share of the bytes that were written before the first token was sampled
KV_EXPOSED = "baton.kv.exposed_seconds"  # from the first token until the last byte was written
KV_ROUNDS = "baton.kv.resends"

PROVIDER_NAME = "baton"
