#!/bin/bash
# One run on three nodes: `sbatch slurm.sh`. Submit it again to resume the run. The working directory must be on a shared file system.
#SBATCH --job-name=ppo_cartpole
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
set -euo pipefail

source "$HOME/runner/bin/activate"
run_dir="$PWD/runs/$SLURM_JOB_NAME"
head_host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
head_ip=$(srun --nodes=1 --ntasks=1 --nodelist="$head_host" hostname --ip-address | awk '{print $1}')

if [ -d "$run_dir/checkpoints" ]; then
  command=(runner resume "$run_dir" ray.address=auto)
else
  command=(runner train ppo_cartpole ray.address=auto env_runners.num_env_runners=16
    env_runners.scheduling_strategy=SPREAD "hydra.run.dir=$run_dir")
fi

# Starts Ray on each node, and the command on the head; the cluster ends with the command.
srun ray symmetric-run --address "$head_ip:6379" --min-nodes "$SLURM_NNODES" --num-cpus="$SLURM_CPUS_PER_TASK" \
  -- "${command[@]}" &
step=$!
trap 'kill -TERM "$step"' TERM  # two minutes before the time limit, the run writes a checkpoint and ends
while kill -0 "$step" 2>/dev/null; do wait "$step" && status=0 || status=$?; done
exit "$status"
