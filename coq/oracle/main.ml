(* The line protocol of the oracle: one query a line, fields separated by tabs, one line of answer.

     all   PATTERN TERM      all answers, in order:   ok {x=t, ...} {...} | fail | unguarded
     first PATTERN TERM      the first:               ok {x=t, ...} | fail | unguarded
     run N PATTERN TERM      all answers, by at most N steps of the machine:   ... | timeout
     vm N  PATTERN TERM      the same, by the compiled code
     big N PATTERN TERM      the same, by the big-step semantics, N levels deep
     trace N PATTERN TERM    the states of the first N steps: the alternatives of each, as
                             the number of actions left and what is bound
     steps N NAMES PATTERN TERM  the first N steps of the search for all answers, in full: where
                             it begins, then what the first alternative becomes at each step;
                             environments are shown at the names given (x y ...)
     admits N PATTERN TERM   whether the term satisfies the pattern's item in the index, within N
                             levels:   yes | no | timeout
     below PATTERN           the names that every match binds at or below its subject, in order
     extent PATTERN          the operators that a match visits:   any | NAME ...
     check PATTERN           wf=... guarded=...
     infer PATTERN           the same of the pattern with its lists inferred
     legal REWRITE           whether a rewrite is legal, in the fields that rewrites.ml lists:
                             legal | refused CONDITION ... | no graph
     equation LEFT RIGHT     whether two expressions of tensors are equal, as equations.ml reads
                             them:   accepted | refused DIFFERENCE

   Answers are separated by tabs. What cannot be read, or has no meaning here, answers
   `error ...` or `unsupported ...`. Output is flushed at each line, but not with --batch. *)

open Oracle
open Text

let answers = function
  | [] -> "fail"
  | stores ->
      let add b store = Buffer.add_char b '\t'; add_store b store in
      shown (fun b -> Buffer.add_string b "ok"; List.iter (add b)) stores

let within_steps = function
  | None -> "timeout"
  | Some stores -> answers stores

let guarded_only answer = function
  | None -> "unguarded"
  | Some result -> answer result

let shown_state state =
  let alternative (store, actions) =
    string_of_int (List.length actions) ^ shown_store store
  in
  String.concat " " (List.map alternative state)

let running = function (_, _ :: _) :: _ -> true | _ -> false

let rec trace steps state =
  let here = shown_state state in
  if steps > 0 && running state then here :: trace (steps - 1) (oracle_step operator_name state)
  else [ here ]

(* Steps in full, one field each. *)

let shown_location = function
  | LFree x -> shown_name (Table.name variables x)
  | LFresh n -> string_of_int n

let commas shown items = String.concat "," (List.map shown items)
let shown_variable x = shown_name (Table.name variables x)

(* The form of a pattern, with the names and numbers in it. *)
let shown_form = function
  | PVar x -> shown_variable x
  | POp (f, ps) -> Printf.sprintf "%s/%d" (shown_dotted (operator_name f)) (List.length ps)
  | PFun (x, ps) -> Printf.sprintf "$%s/%d" (shown_variable x) (List.length ps)
  | PAlt _ -> "|"
  | PEx (x, _) -> "exists " ^ shown_variable x
  | PGuard _ -> "where"
  | PLet (_, x, _) -> "let " ^ shown_variable x
  | PMatch (_, _, x) -> "with " ^ shown_variable x
  | PMu (xs, _, _, _, _, ys) ->
      Printf.sprintf "rec(%s)(%s)" (commas shown_variable xs) (commas shown_variable ys)
  | PCall (i, ys) -> Printf.sprintf "^%d(%s)" i (commas shown_variable ys)

let shown_action names action =
  let environment rho =
    let shown x = match rho x with Some l -> shown_location l | None -> "-" in
    "[" ^ commas shown names ^ "]"
  in
  let here r rho p = Printf.sprintf "%s %d %s" (shown_form p) (List.length r) (environment rho) in
  match action with
  | AMatch (r, rho, p, t) -> Printf.sprintf "match %s %s" (here r rho p) (shown_term t)
  | AGuard (rho, _) -> "guard " ^ environment rho
  | ALet (rho, x, _) -> Printf.sprintf "let %s %s" (shown_variable x) (environment rho)
  | ACheck l -> "check " ^ shown_location l
  | AMatchC (r, rho, p, x) -> Printf.sprintf "matchC %s %s" (shown_variable x) (here r rho p)

let shown_configuration names (store, actions) =
  let cell (l, v) = shown_location l ^ "=" ^ shown_value v in
  let cells = String.concat ", " (List.rev_map cell store.cells) in
  String.concat " :: "
    (Printf.sprintf "%d{%s}" store.next cells :: List.map (shown_action names) actions)

let rec prefix n = function x :: rest when n > 0 -> x :: prefix (n - 1) rest | _ -> []

let rec steps names n state =
  match state with
  | (_, []) :: stack -> steps names n stack
  | _ :: stack when n > 0 ->
      let next = oracle_step operator_name state in
      let became = prefix (List.length next - List.length stack) next in
      String.concat " | " (List.map (shown_configuration names) became)
      :: steps names (n - 1) next
  | _ -> []

let names_of table ids =
  String.concat " " (List.sort_uniq compare (List.map (Table.name table) ids))

let checks p = Printf.sprintf "wf=%b guarded=%b" (oracle_wf p) (oracle_guarded p)

let answer line =
  let pattern = whole pattern and term = whole term in
  match String.split_on_char '\t' line with
  | [ "all"; p; t ] -> guarded_only answers (oracle_all operator_name (pattern p) (term t))
  | [ "first"; p; t ] ->
      guarded_only
        (fun found -> answers (Option.to_list found))
        (oracle_first operator_name (pattern p) (term t))
  | [ "run"; n; p; t ] ->
      within_steps (oracle_run operator_name (int_of_string n) (pattern p) (term t))
  | [ "vm"; n; p; t ] ->
      within_steps (oracle_vm operator_name (int_of_string n) (pattern p) (term t))
  | [ "big"; n; p; t ] ->
      within_steps (oracle_big operator_name (int_of_string n) (pattern p) (term t))
  | [ "trace"; n; p; t ] ->
      String.concat "\t" (trace (int_of_string n) (oracle_init (pattern p) (term t)))
  | [ "steps"; n; names; p; t ] ->
      let names =
        List.filter_map
          (fun x -> if x = "" then None else Some (Table.intern variables x))
          (String.split_on_char ' ' names)
      in
      let start = oracle_init (pattern p) (term t) in
      String.concat "\t"
        (List.map (shown_configuration names) start @ steps names (int_of_string n) start)
  | [ "admits"; n; p; t ] -> (
      match oracle_admits operator_name (int_of_string n) (pattern p) (term t) with
      | None -> "timeout"
      | Some admitted -> if admitted then "yes" else "no")
  | [ "below"; p ] -> names_of variables (oracle_below (pattern p))
  | [ "extent"; p ] -> (
      match oracle_extent (pattern p) with
      | None -> "any"
      | Some visited -> names_of operators visited)
  | [ "check"; p ] -> checks (pattern p)
  | [ "infer"; p ] -> checks (oracle_infer (pattern p))
  | "legal" :: fields -> Rewrites.verdict fields
  | "ring" :: fields -> Rings.verdict fields
  | "tasks" :: fields -> Tasks.verdict fields
  | "equation" :: fields -> Equations.verdict fields
  | _ -> raise (Syntax "no such query")

let () =
  let batch = Array.mem "--batch" Sys.argv in
  try
    while true do
      let line = input_line stdin in
      let reply =
        try answer line with
        | Syntax message | Failure message -> "error " ^ message
        | Unsupported what -> "unsupported " ^ what
        | Stack_overflow -> "error out of stack"
      in
      print_string reply;
      print_char '\n';
      if not batch then flush stdout
    done
  with End_of_file -> ()
