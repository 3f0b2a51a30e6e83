#!/bin/sh
"$SLUICE" ranktable --ips 127.0.1.1 127.0.1.3 --npus-per-node 16 --network-card-name lo --prefill-device-cnt 16 --decode-device-cnt 16
