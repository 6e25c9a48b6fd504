export PYTHONPATH=.site:src XLA_PYTHON_CLIENT_PREALLOCATE=false OMP_NUM_THREADS=1
rm -rf runs; mkdir -p runs
[ -d .site ] || pip install -q --no-index --no-deps --target .site .wheels/*.whl 2>&1 | tail -1
date +%T
time python3 -m diaster train Hopper-v5 --steps 20000 --seeds 5 --out runs/hop20k --evaluation.every 10000 2>&1 | tail -5
cat runs/hop20k/metadata.json | grep -E "wall|first"
date +%T
for job in "InvertedPendulum-v5 20000" "Hopper-v5 300000" "HalfCheetah-v5 300000" "Ant-v5 250000"; do set -- $job
 setsid nohup python3 -m diaster train $1 --steps $2 --seeds 5 --out runs/$1 --evaluation.every 10000 > runs/$1.log 2>&1 &
done
for i in $(seq 1 ${WAIT:-48}); do sleep 10; mkdir -p $OUT; n=$(ls runs/*/DONE 2>/dev/null | wc -l); [ $n -ge 5 ] && break; done
date +%T
for e in InvertedPendulum-v5 Hopper-v5 HalfCheetah-v5 Ant-v5; do cp runs/$e/progress.csv $OUT/$e.csv; cp runs/$e.log $OUT/$e.log; echo == $e; tail -3 runs/$e.log; done
nvidia-smi | grep MiB; uptime
