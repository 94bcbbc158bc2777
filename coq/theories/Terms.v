(** * Term structures

    Patterns are matched against any type of terms that can be compared, taken apart, and asked for
    attributes.  Finite trees and the node identifiers of a graph are the two structures of interest. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values.

Class Structure {Δ : Domain} (T : Type) : Type := {
  teqb : T -> T -> bool;
  teqb_spec : forall t u, teqb t u = true <-> t = u;
  dest : T -> op * list T;          (** operator and children *)
  meaning : interpretation T        (** of attributes and operations *)
}.

Definition attribute {Δ : Domain} {T : Type} {Σ : Structure T} := attribute_in meaning.
Definition operation {Δ : Domain} {T : Type} {Σ : Structure T} := operation_in meaning.

(** Needed for termination alone: children are smaller. *)
Class Sized {Δ : Domain} (T : Type) {Σ : Structure T} : Type := {
  size : T -> nat;
  size_child : forall t f ts u, dest t = (f, ts) -> In u ts -> size u < size t
}.

(** [veqb v w]: equality of the values of a structure. *)
Definition veqb {Δ : Domain} {T : Type} {Σ : Structure T} : value T -> value T -> bool :=
  value_eqb teqb.

Lemma veqb_spec {Δ : Domain} {T : Type} {Σ : Structure T} (v w : value T) :
  veqb v w = true <-> v = w.
Proof. apply value_eqb_spec, teqb_spec. Qed.

Lemma veqb_refl {Δ : Domain} {T : Type} {Σ : Structure T} (v : value T) : veqb v v = true.
Proof. now apply veqb_spec. Qed.

(** ** Finite trees *)

Inductive term : Type := Node (f : op) (ts : list term).

Section TermInd.
Variable P : term -> Prop.
Hypothesis HNode : forall f ts, Forall P ts -> P (Node f ts).

Fixpoint term_ind' (t : term) : P t :=
  match t with
  | Node f ts =>
      HNode f ts
        ((fix go ts : Forall P ts :=
            match ts with
            | [] => Forall_nil P
            | t :: ts => Forall_cons t (term_ind' t) (go ts)
            end) ts)
  end.
End TermInd.

Definition term_dest (t : term) : op * list term := match t with Node f ts => (f, ts) end.

Fixpoint term_size (t : term) : nat :=
  match t with Node _ ts => S (list_sum (map term_size ts)) end.

Fixpoint term_eqb (t u : term) : bool :=
  match t, u with
  | Node f ts, Node g us =>
      Nat.eqb f g &&
      (fix go ts us :=
         match ts, us with
         | [], [] => true
         | t :: ts, u :: us => term_eqb t u && go ts us
         | _, _ => false
         end) ts us
  end.

Lemma term_eqb_node f g ts us :
  term_eqb (Node f ts) (Node g us) = true <->
  f = g /\ Forall2 (fun t u => term_eqb t u = true) ts us.
Proof.
  simpl. rewrite andb_true_iff, Nat.eqb_eq. apply and_iff_compat_l.
  revert us. induction ts as [| t ts IH]; intros [| u us].
  - split; auto.
  - split; [discriminate | intros H; inversion H].
  - split; [discriminate | intros H; inversion H].
  - rewrite andb_true_iff, IH. split; [intros [? ?]; now constructor |].
    intros H. inversion_clear H. auto.
Qed.

Lemma term_eqb_spec t : forall u, term_eqb t u = true <-> t = u.
Proof.
  induction t as [f ts IH] using term_ind'. intros [g us]. rewrite term_eqb_node. split.
  - intros [-> H]. f_equal. clear g. induction H as [| t u ts us E _ IHts]; auto.
    inversion_clear IH as [| ? ? Ht Hts]. f_equal; [now apply Ht | now apply IHts].
  - intros [= -> ->]. split; auto. induction IH as [| t ts Ht _ IHts]; constructor; auto.
    now apply Ht.
Qed.

Lemma term_size_child t f ts u : term_dest t = (f, ts) -> In u ts -> term_size u < term_size t.
Proof.
  destruct t as [g us]. simpl. intros [= -> ->] I.
  induction ts as [| t ts IH]; [destruct I |].
  simpl. destruct I as [-> | I]; [lia |]. apply IH in I. lia.
Qed.

Section Trees.
Context {Δ : Domain}.
Variable tree_meaning : interpretation term.

Definition tree_structure : Structure term := {|
  teqb := term_eqb;
  teqb_spec := term_eqb_spec;
  dest := term_dest;
  meaning := tree_meaning
|}.

Definition tree_sized : @Sized Δ term tree_structure := {|
  size := term_size : term -> nat;
  size_child := term_size_child : forall t f ts u, @dest _ _ tree_structure t = (f, ts) -> _
|}.
End Trees.
