#!/bin/sh
# A decoder node: $1 its address, $2 its first data-parallel rank.
cd "$(dirname "$0")" || exit 1
export LOCAL_IP=$1
"$SLUICE" launch --dp-size 32 --tp-size 1 --dp-size-local 16 --dp-rank-start "$2" --dp-address 127.0.1.3 --dp-rpc-port 12321 --vllm-start-port 7100
