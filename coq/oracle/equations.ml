(* Equations of tensors, two fields of text: both sides, each a word or a form in parentheses, words
   separated by blanks. 3/2 is a number, s4 the size 4, i4 the index 4; (read 0 i4 ...) an element of
   the input 0, (fn 2 e ...) the function 2; (add e e), (mul e e), (pow e 3/2), (exp e); (sum 4 n e) and
   (max 4 n e) are over the index 4 below n; among arguments, (each 4 n e ...) are those for each of these. *)

open Oracle
open Numbers
open Text

let words text =
  let b = Buffer.create (String.length text) in
  let spaced c = Buffer.add_char b ' '; Buffer.add_char b c; Buffer.add_char b ' ' in
  String.iter (function ('(' | ')') as c -> spaced c | c -> Buffer.add_char b c) text;
  List.filter (( <> ) "") (String.split_on_char ' ' (Buffer.contents b))

let is_integer word =
  let digits = if word <> "" && word.[0] = '-' then String.sub word 1 (String.length word - 1) else word in
  digits <> "" && String.for_all is_digit digits

let integer word = if is_integer word then integer_of_digits word else raise (Syntax ("not a number: " ^ word))

let rational word =
  match List.map integer (String.split_on_char '/' word) with
  | [ n ] -> { qnum = n; qden = XH }
  | [ n; Zpos d ] -> { qnum = n; qden = d }
  | _ -> raise (Syntax ("not a number: " ^ word))

let rec expression = function
  | "(" :: head :: rest -> form head rest
  | word :: rest when word <> ")" -> (
      let tail () = integer (String.sub word 1 (String.length word - 1)) in
      match word.[0] with
      | 's' -> (Size (tail ()), rest)
      | 'i' -> (Var (tail ()), rest)
      | _ -> (Num (rational word), rest))
  | _ -> raise (Syntax "an expression is missing")

and form head rest =
  let one make rest = let a, rest = expression rest in (make a, closed rest) in
  let two make rest =
    let a, rest = expression rest in
    let b, rest = expression rest in
    (make a b, closed rest)
  in
  let after word rest make = match rest with
    | first :: rest -> make (word first) rest
    | [] -> raise (Syntax "a word is missing")
  in
  match head with
  | "add" -> two (fun a b -> Add (a, b)) rest
  | "mul" -> two (fun a b -> Mul (a, b)) rest
  | "exp" -> one (fun a -> Exp a) rest
  | "sum" -> after integer rest (fun v -> two (fun n a -> Sum (v, n, a)))
  | "max" -> after integer rest (fun v -> two (fun n a -> Max (v, n, a)))
  | "read" -> after integer rest (fun x rest -> let a, rest = arguments rest in (Read (x, a), rest))
  | "fn" -> after integer rest (fun f rest -> let a, rest = arguments rest in (Fn (f, a), rest))
  | "pow" -> (
      let a, rest = expression rest in
      match rest with
      | word :: rest -> (Pow (a, rational word), closed rest)
      | [] -> raise (Syntax "an exponent is missing"))
  | _ -> raise (Syntax ("no such form: " ^ head))

and arguments = function
  | ")" :: rest -> (Nil, rest)
  | "(" :: "each" :: v :: rest ->
      let n, rest = expression rest in
      let a, rest = arguments rest in
      let b, rest = arguments rest in
      (Each (integer v, n, a, b), rest)
  | rest ->
      let a, rest = expression rest in
      let b, rest = arguments rest in
      (Cons (a, b), rest)

and closed = function ")" :: rest -> rest | _ -> raise (Syntax "expected `)`")

let side text =
  match expression (words text) with
  | e, [] -> e
  | _ -> raise (Syntax "words are left over")

let shown_rational { qnum; qden } =
  digits_of_integer qnum ^ if qden = XH then "" else "/" ^ digits_of_integer (Zpos qden)

let rec shown e =
  let form head parts = "(" ^ String.concat " " (head :: parts) ^ ")" in
  let rec listed = function
    | Cons (a, b) -> shown a :: listed b
    | Each (v, n, a, b) -> form "each" (digits_of_integer v :: shown n :: listed a) :: listed b
    | _ -> []
  in
  match e with
  | Num q -> shown_rational q
  | Size s -> "s" ^ digits_of_integer s
  | Var v -> "i" ^ digits_of_integer v
  | Read (x, a) -> form "read" (digits_of_integer x :: listed a)
  | Fn (f, a) -> form "fn" (digits_of_integer f :: listed a)
  | Add (a, b) -> form "add" [ shown a; shown b ]
  | Mul (a, b) -> form "mul" [ shown a; shown b ]
  | Pow (a, q) -> form "pow" [ shown a; shown_rational q ]
  | Exp a -> form "exp" [ shown a ]
  | Sum (v, n, a) -> form "sum" [ digits_of_integer v; shown n; shown a ]
  | Max (v, n, a) -> form "max" [ digits_of_integer v; shown n; shown a ]
  | Nil | Cons _ | Each _ -> form "list" (listed e)

let verdict = function
  | [ left; right ] -> (
      match oracle_equation (side left) (side right) with
      | None -> "accepted"
      | Some difference -> "refused " ^ shown difference)
  | _ -> raise (Syntax "an equation has two sides")
