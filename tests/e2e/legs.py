"""The two legs of a P/D request by hand, so that a test can put a fault between them."""
import client

ASK = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
       "remote_block_ids": None, "remote_host": None, "remote_port": None}


def prefill(port, prompt, headers=None):
    """The first leg: prefills on P, whose blocks stay under a lease. Returns what D needs to know."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "kv_transfer_params": ASK}
    reply = client.post(port, "/v1/completions", body, headers=headers)
    if reply.status != 200:
        raise AssertionError(f"prefill leg: {reply}")
    params = reply.json()["kv_transfer_params"]
    if not params or params.get("do_remote_prefill") is not True:
        raise AssertionError(f"prefill leg without kv_transfer_params: {reply}")
    return params


def decode(port, prompt, params, n, timeout=60):
    """The second leg: D pulls what `params` names and decodes n tokens."""
    return client.complete(port, prompt, n, kv_transfer_params=params, timeout=timeout)
