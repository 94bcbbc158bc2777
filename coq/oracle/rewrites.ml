(* Rewrites of graphs, as six fields of text: inputs, the nodes before the window, the old window, the
   new one, the nodes after it, outputs. Words are separated by blanks; names are numbers.

     input    NAME:CLASS
     node     NAME=@NAME                          another name for a value
              NAME=SYMBOL;SIGNATURE;...:NAME,...  a call of an operator
     output   NAME

   A signature is made of f (new memory), v0 (a view of argument 0), m0.1 (possibly a view of 0 or
   1), w0.1 (writes 0 and 1), s (switches a mode), d (draws) and a (acts). *)

open Oracle
open Text

let words field = List.filter (( <> ) "") (String.split_on_char ' ' field)

let number text =
  match int_of_string_opt text with
  | Some n when n >= 0 -> n
  | _ -> raise (Syntax ("not a number: " ^ text))

let numbers separator text =
  if text = "" then [] else List.map number (String.split_on_char separator text)

let cut separator text =
  match String.index_opt text separator with
  | Some i -> (String.sub text 0 i, String.sub text (i + 1) (String.length text - i - 1))
  | None -> raise (Syntax (Printf.sprintf "no %c in %s" separator text))

let input word = let name, kind = cut ':' word in (number name, number kind)

let call symbol signature arguments =
  let shares = ref Fresh and writes = ref [] in
  let switches = ref false and draws = ref false and acts = ref false in
  let add part =
    let positions = String.sub part 1 (String.length part - 1) in
    match part.[0] with
    | 'f' -> shares := Fresh
    | 'v' -> shares := View (number positions)
    | 'm' -> shares := Maybe (numbers '.' positions)
    | 'w' -> writes := numbers '.' positions
    | 's' -> switches := true
    | 'd' -> draws := true
    | 'a' -> acts := true
    | _ -> raise (Syntax ("no signature: " ^ part))
  in
  List.iter add signature;
  oracle_call symbol !shares !writes !switches !draws !acts arguments

let node word =
  let name, meaning = cut '=' word in
  let definition =
    if meaning.[0] = '@' then Same (number (String.sub meaning 1 (String.length meaning - 1)))
    else
      let operator, arguments = cut ':' meaning in
      match String.split_on_char ';' operator with
      | symbol :: signature -> call (number symbol) signature (numbers ',' arguments)
      | [] -> raise (Syntax word)
  in
  (number name, definition)

let condition = function
  | NamesDefined -> "NamesDefined"
  | NothingWritten -> "NothingWritten"
  | ModesKept -> "ModesKept"
  | SameEffects -> "SameEffects"
  | WritesApart -> "WritesApart"
  | VisibleApart -> "VisibleApart"

let verdict = function
  | [ inputs; before; old; now; after; outputs ] -> (
      let graph field = List.map node (words field) in
      let inputs = List.map input (words inputs) and outputs = List.map number (words outputs) in
      match oracle_refusals inputs (graph before) (graph old) (graph now) (graph after) outputs with
      | None -> "no graph"
      | Some [] -> "legal"
      | Some failed -> String.concat " " ("refused" :: List.map condition failed))
  | _ -> raise (Syntax "a rewrite has six fields")
