"""The tool that `baton chat` offers its model: how many workers of a tier the mesh has, from the gateway's /health.

The tool runs in the client's process; the model only writes the call and reads the result."""

import json

from baton.inference.v1 import inference_pb2 as pb
from cli.connecting.health import health

TIERS = ("prefill", "decode")
MESH_STATUS = pb.Tool(
    name="mesh_status",
    description="Look at the workers of a tier",
    parameters_json=json.dumps(
        {"type": "object", "properties": {"tier": {"type": "string", "enum": TIERS}}, "required": ["tier"]}
    ),
)


async def run_tool(call: pb.ToolCall, http_address: str) -> str:
    """Run the call; the result, or the error, is a JSON object for the model."""
    arguments = json.loads(call.arguments_json)
    if call.name != MESH_STATUS.name or arguments.get("tier") not in TIERS:
        return json.dumps({"error": f"{MESH_STATUS.name} takes a tier: {' or '.join(TIERS)}"})
    seen = await health(http_address)
    if seen is None:
        return json.dumps({"error": f"no gateway that can serve answers at http://{http_address}/health"})
    workers = seen.get(arguments["tier"], 0)
    return json.dumps({"tier": arguments["tier"], "workers": workers, "status": "ready" if workers else "missing"})
