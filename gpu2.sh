export PYTHONPATH=.site:src XLA_PYTHON_CLIENT_PREALLOCATE=false OMP_NUM_THREADS=1
rm -rf runs; mkdir -p runs
[ -d .site ] || pip install -q --no-index --no-deps --target .site .wheels/*.whl 2>&1 | tail -1
date +%T
go() { n=$1; shift; setsid nohup python3 -m diaster train "$@" --seeds 5 --out runs/$n --evaluation.every 20000 --decomposer.variance-penalty $LAM > runs/$n.log 2>&1 & }
HC="HalfCheetah-v5 --steps 160000"; ANT="Ant-v5 --steps 120000"
LAM=0.015625 go hcA $HC
LAM=0.015625 go hcB $HC --decomposer.batch-episodes 8 --decomposer.segments-per-episode 8
LAM=0.0625 go hcC $HC --decomposer.segments-per-episode 8 --decomposer.updates 500
LAM=0.015625 go hcD $HC --decomposer.segments-per-episode 8 --decomposer.updates 500
LAM=0.0625 go hcE $HC --decomposer.updates 1000
LAM=0.015625 go hcH $HC --decomposer.learning-rate 0.001
LAM=0.015625 go antD $ANT --decomposer.segments-per-episode 8 --decomposer.updates 500
LAM=0.015625 go antH $ANT --decomposer.learning-rate 0.001
for i in $(seq 1 ${WAIT:-48}); do sleep 10; n=$(ls runs/*/DONE 2>/dev/null | wc -l); [ $n -ge 8 ] && break; done
date +%T
for e in hcA hcB hcC hcD hcE hcH antD antH; do cp runs/$e/progress.csv $OUT/$e.csv; echo == $e; grep ^step runs/$e.log | cut -c1-110| tail -8;  done
nvidia-smi | grep MiB; uptime
