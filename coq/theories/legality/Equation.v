(** * What a rule promises: an equation between values

    Values, without memory: what the nodes of a window mean if the values of all names are known.  The
    author of a rule answers for the equation; [legal] for all the rest. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names.
From PyPM.legality Require Import Execution Legal.

Section Equation.
Context {τ : Torch}.

Definition valuation : Type := name -> value.

(** The value of a node, from the values of what it reads. *)
Definition meaning (s : operator -> sees) (ρ : valuation) (d : definition) : value :=
  match d with
  | Same m => ρ m
  | Call f args =>
      let vs := map ρ args in
      match viewed f args (s f) vs with
      | Some a => get (part f (s f) vs) (ρ a)
      | None => result f (s f) vs
      end
  end.

(** What operators without effects see: the mode alone. *)
Definition only_mode (m : mode) (_ : operator) : sees := Surroundings m None None.

Definition pure_meaning (m : mode) : valuation -> definition -> value := meaning (only_mode m).

(** The values are those that the nodes of [g] compute from each other. *)
Definition satisfies (m : mode) (ρ : valuation) (g : graph) : Prop :=
  forall n d, In (n, d) g -> ρ n = pure_meaning m ρ d.

(** What a call with an effect gives is what the one gave in whose place it stands. *)
Definition partner (w : rewrite) (y : name) : option name :=
  option_map (fun p => fst (fst p)) (find (fun p => Nat.eqb (fst (snd p)) y) (paired w)).

Definition anew (w : rewrite) (m : mode) (ρ ρ' : valuation) (x : node) : value :=
  if effectful x
  then match partner w (fst x) with Some n => ρ n | None => ρ (fst x) end
  else pure_meaning m ρ' (snd x).

(** The replacement, computed one node after the other from given values. *)
Definition evaluate (w : rewrite) (m : mode) (ρ : valuation) : valuation :=
  fold_left (fun ρ' x => assign ρ' (fst x) (anew w m ρ ρ' x)) (replacement w) ρ.

(** The part of its base that a name is a view of, by a chain of certain views. *)
Definition part_of (m : mode) (ρ : valuation) (P : name -> list lens) (x : node) : list lens :=
  match sure_view x, snd x with
  | Some a, Call f args => P a ++ [part f (only_mode m f) (map ρ args)]
  | Some a, Same _ => P a
  | None, _ => []
  end.

Definition parts (m : mode) (ρ : valuation) (g : graph) : name -> list lens :=
  fold_left (fun P x => assign P (fst x) (part_of m ρ P x)) g (fun _ => []).

(** Two paths to the same part of any value. *)
Definition same_part (p q : list lens) : Prop :=
  (forall v, look_at p v = look_at q v) /\ (forall v w, put_at p v w = put_at q v w).

(** The equation of a rewrite at some values: the replacement computes of them what they say that the
    roots are; a view in place of a view of one base is a view of the same part; and where it draws or
    acts, it does so on the same operands. *)
Record equation_at (w : rewrite) (m : mode) (ρ : valuation) : Prop := {
  same_values : forall r, In r (roots w) -> evaluate w m ρ r = ρ r;
  same_views : forall r, In r (roots w) -> same_base w r = true ->
    same_part (parts m ρ (old w) r) (parts m (evaluate w m ρ) (new w) r);
  same_operands : forall x y, In (x, y) (paired w) -> x <> y ->
    map ρ (reads (snd x)) = map (evaluate w m ρ) (reads (snd y))
}.

(** Two views [p] and [q] of one value overlap as [p'] and [q'] of another one do: if both pairs show
    the same, they do so after a write to the first. *)
Definition same_overlap (p q p' q' : list lens) : Prop := forall v v' w,
  look_at p v = look_at p' v' -> look_at q v = look_at q' v' -> fits (look_at p v) w ->
  look_at q (put_at p v w) = look_at q' (put_at p' v' w).

(** Roots that the caller gets, and that have moved, keep their parts relative to each other, and to
    themselves: a tensor that shows one number twice is another one than a copy of it. *)
Definition parts_kept (w : rewrite) (σ : state) : Prop :=
  let E := env (run (before w ++ old w) σ) in
  let E' := env (run (before w ++ new w) σ) in
  forall r s, In r (held w) -> In s (held w) -> home (E r) = home (E s) ->
  same_overlap (path (E r)) (path (E s)) (path (E' r)) (path (E' s)).

(** It holds wherever the values are those that the region computes, in any mode. *)
Definition equation (w : rewrite) : Prop :=
  forall m ρ, satisfies m ρ (region w) -> equation_at w m ρ.

(** It holds at the values that are there at the end of the old window. *)
Definition holds_at (w : rewrite) (σ : state) : Prop :=
  let σ' := run (before w ++ old w) σ in
  satisfies (now_mode σ') (look σ') (region w) -> equation_at w (now_mode σ') (look σ').

Lemma equation_holds_at w σ : equation w -> holds_at w σ.
Proof. intros E S. now apply E. Qed.
End Equation.
