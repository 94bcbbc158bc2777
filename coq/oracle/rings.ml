(* Logs of asynchronous references, as five fields of text: slots, items, consumers, how many items are
   got before each is given back, and events. An event is P (put), L3 (item 3 has landed), G0 (consumer
   0 gets), E0:3 (consumer 0 has read item 3) or F0 (consumer 0 gives back). *)

open Oracle
open Text
open Rewrites

let event word =
  let rest = String.sub word 1 (String.length word - 1) in
  match word.[0] with
  | 'P' -> EPut
  | 'L' -> ELand (number rest)
  | 'G' -> EGet (number rest)
  | 'E' -> let consumer, item = cut ':' rest in EEnd (number consumer, number item)
  | 'F' -> EFree (number rest)
  | _ -> raise (Syntax ("not an event: " ^ word))

let verdict = function
  | [ slots; items; consumers; due; events ] -> (
      let due = List.map number (words due) and events = List.map event (words events) in
      match oracle_ring (number slots) (number items) (number consumers) due events with
      | None -> "accepted"
      | Some n -> Printf.sprintf "refused after %d" n)
  | _ -> raise (Syntax "a log has five fields")
