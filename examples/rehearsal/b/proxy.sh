#!/bin/sh
"$SLUICE" proxy --host 127.0.1.1 --port 1025 --prefiller-hosts 127.0.1.1 --prefiller-ports 20002 --decoder-hosts 127.0.1.3 --decoder-ports 20002
