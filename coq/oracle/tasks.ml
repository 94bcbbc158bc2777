(* Logs of tasks that wait for events, as six fields of text: workers; of each task the events that it
   waits for; of each task those that it notifies; the tasks of each queue; the rank of each task; and
   what happened. A list is 3,5 or -. What happened is E0:2 (worker 0 enters with queue 2), T0:2:7 (it
   takes task 7 from queue 2), B0:7 (it begins the task), F0:7 (it has run it), N0:7:4 (it notifies event
   4) or L0:7 (it is done with it). *)

open Oracle
open Text
open Rewrites

let lists field = List.map (fun word -> if word = "-" then [] else numbers ',' word) (words field)

let happened word =
  let rest = String.sub word 1 (String.length word - 1) in
  match (word.[0], numbers ':' rest) with
  | 'E', [ worker; queue ] -> Enter (worker, queue)
  | 'T', [ worker; queue; task ] -> Take (worker, queue, task)
  | 'B', [ worker; task ] -> Begin (worker, task)
  | 'F', [ worker; task ] -> Finish (worker, task)
  | 'N', [ worker; task; event ] -> Notify (worker, task, event)
  | 'L', [ worker; task ] -> Leave (worker, task)
  | _ -> raise (Syntax ("nothing that happens: " ^ word))

let verdict = function
  | [ workers; waits; notes; queues; rank; log ] -> (
      let rank = List.map number (words rank) and log = List.map happened (words log) in
      match oracle_tasks (number workers) (lists waits) (lists notes) (lists queues) rank log with
      | None -> "accepted"
      | Some n -> Printf.sprintf "refused after %d" n)
  | _ -> raise (Syntax "a log of tasks has six fields")
