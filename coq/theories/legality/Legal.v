(** * Legality, as a function

    A rewrite turns a window of a graph, from the first node of a region to its last output, into
    another one.  [legal] decides from operators' signatures alone, without any value, whether that can
    be seen by anyone but through the values that the replacement computes. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names.
From PyPM.legality Require Import Execution.

Record rewrite : Type := Rewrite {
  inputs : list (name * nat);    (** each with its class: those of one class may share memory *)
  before : graph;
  old : graph;                   (** the window as it is *)
  new : graph;                   (** and as it will be *)
  after : graph;                 (** what is replaced is read by name *)
  outputs : list name
}.

Definition from (w : rewrite) : graph := before w ++ old w ++ after w.
Definition to (w : rewrite) : graph := before w ++ new w ++ after w.

Definition names (g : graph) : list name := map fst g.
Definition input_names (w : rewrite) : list name := map fst (inputs w).

Definition operator_eq_dec : forall f g : operator, {f = g} + {f <> g}.
Proof. repeat decide equality. Defined.

Definition node_eq_dec : forall x y : node, {x = y} + {x <> y}.
Proof. repeat decide equality. Defined.

Definition stays (x : node) (g : graph) : bool := if in_dec node_eq_dec x g then true else false.

(** What is computed anew, and the names of the old window among it: the roots. *)
Definition replacement (w : rewrite) : graph := filter (fun x => negb (stays x (old w))) (new w).
Definition roots (w : rewrite) : list name :=
  filter (fun n => mem n (names (old w))) (names (replacement w)).

(** Nodes with effects, in order; those of both windows go in pairs. *)
Definition effects (g : graph) : graph := filter effectful g.
Definition paired (w : rewrite) : list (node * node) := combine (effects (old w)) (effects (new w)).

(** What the equation of a rule may rely on: all that the old window computes without effects. *)
Definition region (w : rewrite) : graph := filter (fun x => negb (effectful x)) (old w).

(** ** Each name is defined once, and before it is read *)

Fixpoint scoped (defined : list name) (g : graph) : bool :=
  match g with
  | [] => true
  | (n, d) :: g => negb (mem n defined) && subset (reads d) defined && scoped (n :: defined) g
  end.

Definition well_scoped (w : rewrite) (g : graph) : bool :=
  scoped (input_names w) g && subset (outputs w) (names g ++ input_names w).

(** ** Where memory may come from *)

(** [Root r] is the memory of a root: one storage before the rewrite, another after it. *)
Inductive origin : Type :=
| OGiven (class : nat)
| OMade (n : name)
| Root (r : name).

Definition origin_eq_dec : forall o o' : origin, {o = o'} + {o <> o'}.
Proof. repeat decide equality. Defined.

Definition among (o : origin) (os : list origin) : bool :=
  if in_dec origin_eq_dec o os then true else false.

Definition is_root (o : origin) : bool := match o with Root _ => true | _ => false end.

Definition origins : Type := name -> list origin.

Definition assign {A : Type} (O : name -> A) (n : name) (a : A) : name -> A :=
  fun m => if Nat.eqb n m then a else O m.

Definition of_argument (O : origins) (args : list name) (i : nat) (n : name) : list origin :=
  match nth_error args i with Some a => O a | None => [OMade n] end.

Definition origins_of (O : origins) (x : node) : list origin :=
  match snd x with
  | Same m => O m
  | Call f args =>
      match shares f with
      | Fresh => [OMade (fst x)]
      | View i => of_argument O args i (fst x)
      | Maybe is => OMade (fst x) :: flat_map (fun i => of_argument O args i (fst x)) is
      end
  end.

Definition trace (g : graph) (O : origins) : origins :=
  fold_left (fun O x => assign O (fst x) (origins_of O x)) g O.

Definition start (w : rewrite) : origins :=
  fold_left (fun O nk => assign O (fst nk) [OGiven (snd nk)]) (inputs w) (fun _ => []).

Definition entry (w : rewrite) : origins := trace (before w) (start w).
Definition old_origins (w : rewrite) : origins := trace (old w) (entry w).
Definition new_origins (w : rewrite) : origins := trace (new w) (entry w).

(** ** Roots that lie where they did *)

(** The argument that a node is a view of, for certain and whatever was drawn before. *)
Definition sure_view (x : node) : option name :=
  match snd x with
  | Same m => Some m
  | Call f args =>
      match shares f with
      | View i => if effectful x then None else nth_error args i
      | _ => None
      end
  end.

(** Where a chain of such views ends. *)
Definition base_of (B : name -> name) (x : node) : name :=
  match sure_view x with Some a => B a | None => fst x end.

Definition bases (g : graph) : name -> name :=
  fold_left (fun B x => assign B (fst x) (base_of B x)) g (fun n => n).

Definition is_fresh (d : definition) : bool :=
  match d with Call f _ => match shares f with Fresh => true | _ => false end | Same _ => false end.

Definition defines_fresh (g : graph) (n : name) : bool :=
  existsb (fun x => Nat.eqb (fst x) n && is_fresh (snd x)) g.

(** New memory in place of new memory, or a view of what was viewed before. *)
Definition same_base (w : rewrite) (r : name) : bool :=
  let b := bases (old w) r in
  Nat.eqb b (bases (new w) r) &&
  (negb (Nat.eqb b r) || defines_fresh (old w) r && defines_fresh (new w) r).

(** Origins after the window, of both graphs at once. *)
Definition placed (w : rewrite) (O : origins) (x : node) : list origin :=
  let r := fst x in
  if stays x (old w) then origins_of O x
  else if mem r (names (old w)) then
    let b := bases (old w) r in
    if same_base w r && (Nat.eqb b r || negb (existsb is_root (O b)))
    then if Nat.eqb b r then [OMade r] else O b
    else [Root r]
  else [].                       (* new names are not read after the window *)

Definition exit (w : rewrite) : origins :=
  fold_left (fun O x => assign O (fst x) (placed w O x)) (new w) (entry w).

Definition moved (w : rewrite) : list name := filter (fun r => among (Root r) (exit w r)) (roots w).

(** ** What may happen to what has moved *)

Definition apart (os os' : list origin) : bool := forallb (fun o => negb (among o os')) os.

(** Nothing writes to the memory of a moved root, be it the old or the new one. *)
Definition safe_to_write (w : rewrite) (o : origin) : bool :=
  negb (is_root o) &&
  forallb (fun r => negb (among o (old_origins w r)) && negb (among o (new_origins w r))) (moved w).

Definition writes_apart (w : rewrite) (O : origins) (x : node) : bool :=
  match snd x with
  | Same _ => true
  | Call f args =>
      forallb (fun i => match nth_error args i with
                        | Some a => forallb (safe_to_write w) (O a)
                        | None => true
                        end) (writes f)
  end.

Fixpoint all_apart (w : rewrite) (O : origins) (g : graph) : bool :=
  match g with
  | [] => true
  | x :: g => writes_apart w O x && all_apart w (assign O (fst x) (origins_of O x)) g
  end.

(** Two values that the caller gets share memory after the rewrite just if they did before. *)
Definition expanded (O : origins) (o : origin) : list origin :=
  match o with Root r => O r | o => [o] end.

(** Two roots are views of one base, in both graphs. *)
Definition together (w : rewrite) (o o' : origin) : bool :=
  match o, o' with
  | Root r, Root r' =>
      Nat.eqb (bases (old w) r) (bases (old w) r') && Nat.eqb (bases (new w) r) (bases (new w) r')
  | _, _ => false
  end.

Definition same_distance (w : rewrite) (o o' : origin) : bool :=
  together w o o' ||
  (if origin_eq_dec o o' then true else false) ||
  (negb (is_root o) && negb (is_root o')) ||
  (apart (expanded (old_origins w) o) (expanded (old_origins w) o') &&
   apart (expanded (new_origins w) o) (expanded (new_origins w) o')).

Definition visible (w : rewrite) : list name := input_names w ++ outputs w.
Definition at_end (w : rewrite) : origins := trace (after w) (exit w).

Definition visible_apart (w : rewrite) : bool :=
  let O := at_end w in
  forallb (fun n => forallb (fun m =>
    forallb (fun o => forallb (same_distance w o) (O m)) (O n)) (visible w)) (visible w).

(** The moved roots whose memory the caller gets: signatures do not say which parts of it. *)
Definition held (w : rewrite) : list name :=
  filter (fun r => existsb (fun n => among (Root r) (at_end w n)) (visible w)) (moved w).

(** ** Legality *)

(** One effect in place of another: itself; or a call of the same operator, in new memory, in place of
    one that goes. *)
Definition same_effect (w : rewrite) (x y : node) : bool :=
  (if node_eq_dec x y then true else false) ||
  match snd x, snd y with
  | Call f _, Call g _ =>
      (if operator_eq_dec f g then true else false) && is_fresh (snd x) &&
      negb (stays x (new w)) && negb (stays y (old w))
  | _, _ => false
  end.

Definition same_effects (w : rewrite) : bool :=
  Nat.eqb (length (effects (old w))) (length (effects (new w))) &&
  forallb (fun xy => same_effect w (fst xy) (snd xy)) (paired w).

(** Each condition is needed: see [Illegal.v]. *)
Inductive condition : Type :=
| NamesDefined    (** what is read is defined, and before: nothing escapes, there is no cycle *)
| NothingWritten  (** no write in either window *)
| ModesKept       (** no change of mode in either window *)
| SameEffects     (** draws and effects are the same, in the same order *)
| WritesApart     (** no later write shows that a root lies elsewhere *)
| VisibleApart.   (** nor does the caller see it *)

Definition conditions : list condition :=
  [NamesDefined; NothingWritten; ModesKept; SameEffects; WritesApart; VisibleApart].

Definition meets (w : rewrite) (c : condition) : bool :=
  match c with
  | NamesDefined => well_scoped w (to w)
  | NothingWritten => forallb writes_nothing (old w ++ new w)
  | ModesKept => forallb keeps_modes (old w ++ new w)
  | SameEffects => same_effects w
  | WritesApart => all_apart w (exit w) (after w)
  | VisibleApart => visible_apart w
  end.

(** The conditions that a rewrite fails. *)
Definition refusals (w : rewrite) : list condition :=
  filter (fun c => negb (meets w c)) conditions.

Definition legal (w : rewrite) : bool := forallb (meets w) conditions.

(** The graph that is rewritten is one. *)
Definition is_graph (w : rewrite) : bool := well_scoped w (from w).
