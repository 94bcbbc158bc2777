(** * Guardedness: recursion descends

    The analysis is relative to the current activation of the innermost [μ], whose subject has some
    size [n].  The mode of a term says how its size compares with [n].  [sizes_after] collects the
    names that are left bound to small terms; [descends] checks that each call is made on a term
    strictly smaller than the subject of the activation of the [μ] that it calls. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns.

Inductive mode : Type :=
| Strict   (** size [< n] *)
| Weak     (** size [≤ n] *)
| Unk.     (** not known *)

(** The mode of a child. *)
Definition under (m : mode) : mode :=
  match m with
  | Unk => Unk
  | _ => Strict
  end.

(** [G = (strict, weak)]: names known to be bound to terms of size [< n], and [≤ n]. *)
Definition sizes : Type := list name * list name.

Definition no_sizes : sizes := ([], []).

(** What is known of the term that a name stands for. *)
Definition name_mode (G : sizes) (x : name) : mode :=
  if mem x (fst G) then Strict else if mem x (snd G) then Weak else Unk.

(** The names [l] are bound to terms of mode [m]. *)
Definition record_sizes (m : mode) (l : list name) (G : sizes) : sizes :=
  match m with
  | Strict => (l ++ fst G, snd G)
  | Weak => (fst G, l ++ snd G)
  | Unk => G
  end.

Definition forget (x : name) (G : sizes) : sizes := (without x (fst G), without x (snd G)).

(** What is known on both branches of an alternate. *)
Definition meet (G H : sizes) : sizes :=
  (inter (fst G) (fst H), inter (fst G ++ snd G) (fst H ++ snd H)).

(** The modes of a term of mode [v], relative to the outer activations, given the modes [E] of the
    subject of the innermost one. *)
Definition shift (v : mode) (E : list mode) : list mode :=
  match v with
  | Strict => map under E
  | Weak => E
  | Unk => map (fun _ => Unk) E
  end.

Section Guarded.
Context {Δ : Domain}.

Fixpoint sizes_after (R : recursion) (m : mode) (G : sizes) (p : pattern) : sizes :=
  match p with
  | PVar x => record_sizes m [x] G
  | POp _ ps | PFun _ ps => thread (sizes_after R (under m)) G ps
  | PAlt p q => meet (sizes_after R m G p) (sizes_after R m G q)
  | PEx x p => forget x (sizes_after R m (forget x G) p)
  | PGuard p _ => sizes_after R m G p
  | PLet p x e =>
      let G' := sizes_after R m G p in
      match e with
      | EVar y => record_sizes (name_mode G' y) [x] G'
      | _ => G'
      end
  | PMatch p p' x =>
      let G' := sizes_after R m G p in
      sizes_after R (name_mode G' x) G' p'
  | PMu xs _ _ small _ ys => record_sizes m (arguments xs small ys) G
  | PCall i ys =>
      match nth_error R i with
      | Some d => record_sizes m (arguments (d_params d) (d_small d) ys) G
      | None => G
      end
  end.

(** The annotation [small] of a [μ] is true of its body. *)
Definition small_ok (R : recursion) (small : list name) (b : pattern) : bool :=
  let G := sizes_after R Weak no_sizes b in
  subset small (fst G ++ snd G).

(** [descends R m M E G p]: [m] is the mode of the term at hand relative to the innermost activation,
    [M] lists its modes relative to the outer ones, and [E] is [M] as it was when the innermost began. *)
Fixpoint descends (R : recursion) (m : mode) (M E : list mode) (G : sizes) (p : pattern) : bool :=
  match p with
  | PVar _ => true
  | POp _ ps | PFun _ ps =>
      thread_check (sizes_after R (under m)) (descends R (under m) (map under M) E) G ps
  | PAlt p q => descends R m M E G p && descends R m M E G q
  | PEx x p => descends R m M E (forget x G) p
  | PGuard p _ | PLet p _ _ => descends R m M E G p
  | PMatch p p' x =>
      let G' := sizes_after R m G p in
      let v := name_mode G' x in
      descends R m M E G p && descends R v (shift v E) E G' p'
  | PMu xs ins outs small b _ =>
      let R' := Def xs ins outs small b :: R in
      descends R' Weak (m :: M) (m :: M) no_sizes b && small_ok R' small b
  | PCall i _ =>
      match nth_error (m :: M) i with
      | Some Strict => true
      | _ => false
      end
  end.

Definition guarded (p : pattern) : bool := descends [] Weak [] [] no_sizes p.
End Guarded.
