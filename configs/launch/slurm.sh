#!/usr/bin/env bash
# Two machines of eight GPUs under Slurm, from the folder of the clone, on a disk that the machines share:
#
#   sbatch configs/launch/slurm.sh configs/pretrain/demo.yaml --training.output_dir runs/slurm
#
# Five minutes before its time is up the job is told to stop; it saves and ends. Submitted again it goes on, also after a
# machine was lost. Put what your cluster needs (partition, account, modules) where the comments say so.
#SBATCH --job-name=attnkit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --output=%x-%j.log
#SBATCH --requeue
# partition and account: #SBATCH --partition=…
set -euo pipefail

# modules: module load …
source .venv/bin/activate

GPUS=8 # of each machine, as above
export PROCESSES=$((SLURM_NNODES * GPUS))
MAIN=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MAIN

# One launcher on each machine, which alone knows its rank. A run without a checkpoint starts at step 0.
srun --kill-on-bad-exit=1 bash -c 'exec accelerate launch --config_file configs/accelerate/ddp.yaml \
    --num_machines "$SLURM_NNODES" --num_processes "$PROCESSES" --machine_rank "$SLURM_NODEID" \
    --main_process_ip "$MAIN" --main_process_port 29500 \
    train/pretrain.py --training.num_processes "$PROCESSES" --resume --config "$@"' - "$@"
