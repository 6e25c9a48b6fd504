export PYTHONPATH=.site:src XLA_PYTHON_CLIENT_PREALLOCATE=false OMP_NUM_THREADS=1
rm -rf runs; mkdir -p runs
[ -d .site ] || pip install -q --no-index --no-deps --target .site .wheels/*.whl 2>&1 | tail -1
date +%T
python3 benchmarks/throughput.py --seeds 5 --steps 50000 --repeat 1 2>&1 | tee $OUT/throughput.txt
date +%T
go() { n=$1; shift; setsid nohup python3 -m diaster train "$@" --out runs/$n > runs/$n.log 2>&1 & }
go Hopper-v5 Hopper-v5 --steps 300000 --seeds 5
go HalfCheetah-v5 HalfCheetah-v5 --steps 300000 --seeds 5
go Ant-v5 Ant-v5 --steps 250000 --seeds 5
go InvertedPendulum-v5 InvertedPendulum-v5 --steps 20000 --seeds 5
go Hopper-paper Hopper-v5 --steps 100000 --seeds 5 --preset paper
go det1 Swimmer-v5 --steps 4000 --seeds 2
go det2 Swimmer-v5 --steps 4000 --seeds 2
ALL="Hopper-v5 HalfCheetah-v5 Ant-v5 InvertedPendulum-v5 Hopper-paper det1 det2"
cp runs/Hopper-v5.log $OUT/; for i in $(seq 1 ${WAIT:-48}); do sleep 10; n=$(ls runs/*/DONE 2>/dev/null | wc -l); [ $n -ge 7 ] && break; done
date +%T
for e in $ALL; do case $e in det*) ;; *) cp runs/$e/progress.csv $OUT/$e.csv;; esac; echo == $e; grep -E "^step|warn|rror" runs/$e.log | cut -c1-112| tail -6;  done
cmp runs/det1/policy.safetensors runs/det2/policy.safetensors && echo same policy bytes; cmp runs/det1/progress.csv runs/det2/progress.csv && echo same progress bytes; grep -h wall_s runs/*/metadata.json; nvidia-smi | grep MiB; uptime
