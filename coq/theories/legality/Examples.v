(** * T10 on examples

    Each field of an outcome tells two runs apart that agree in all others; the hypotheses of T10_exchange
    and T10_sequence can be met. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Main.
From PyPM.legality Require Import Execution Legal Equation Legality Exchange Illegal.

#[local] Existing Instance Illegal.toy.

(** ** Each field of an outcome *)

Inductive field : Type := Results | Sharing | GivenMemory | History | Generator | Mode.

Definition agrees (f : field) (ins outs : list name) (σ σ' : state) : Prop :=
  match f with
  | Results => forall k, same_shown k (ins ++ outs) σ σ'
  | Sharing => forall n m, In n (ins ++ outs) -> In m (ins ++ outs) ->
      (home (env σ n) = home (env σ m) <-> home (env σ' n) = home (env σ' m))
  | GivenMemory => forall k i, heap σ (Given k i) = heap σ' (Given k i)
  | History => history σ = history σ'
  | Generator => now_generator σ = now_generator σ'
  | Mode => now_mode σ = now_mode σ'
  end.

Lemma outcome_fields ins outs σ σ' : same_outcome ins outs σ σ' <-> forall f, agrees f ins outs σ σ'.
Proof.
  split; [intros [R S G H N M] []; assumption |].
  intros A. split; [apply (A Results) | apply (A Sharing) | apply (A GivenMemory) | apply (A History) |
    apply (A Generator) | apply (A Mode)].
Qed.

(** The runs of two graphs differ in one field, and in no other. *)
Definition differ_in (f : field) (ins outs : list name) (g g' : graph) : Prop :=
  ~ agrees f ins outs (run g initial) (run g' initial) /\
  forall f', f' <> f -> agrees f' ins outs (run g initial) (run g' initial).

Ltac all_others :=
  let f := fresh in let N := fresh in
  intros f; destruct f; intros N; try (destruct N; reflexivity); clear N; simpl agrees; try reflexivity;
  match goal with
  | |- forall k, same_shown _ _ _ _ =>
      intros k; apply same_tensors_shown; intros ? I; simpl in I; intuition (subst; reflexivity)
  | |- forall n m, _ => intros ? ? I J; simpl in I, J;
      intuition (subst; try reflexivity; vm_compute in *; congruence)
  | |- _ => intros; reflexivity
  end.

(** Results: other numbers; *)
Example results_differ : differ_in Results [x] [r] [(r, Call succ [x])] [(r, Call plus_two [x])].
Proof. split; [intros C; destruct (C 0) as [E _]; discriminate E | all_others]. Qed.

(** and other parts of memory, which only a write shows. *)
Example parts_differ : differ_in Results [x] [r; s] (from other_parts) (to other_parts).
Proof.
  split; [| all_others].
  intros C. destruct (C 1) as [_ W]. specialize (W r [9] ltac:(simpl; tauto) eq_refl).
  destruct W as [W _]. vm_compute in W. discriminate W.
Qed.

(** Which of them share memory, where no write shows it: there are no numbers in them. *)
Definition nothing : graph := [(t, Call tail [x]); (u, Call tail [t])].

Lemma empty_shown ns k : forall σ σ',
  (forall n, In n ns -> path (env σ n) = [] /\ heap σ (home (env σ n)) = []) ->
  (forall n, In n ns -> path (env σ' n) = [] /\ heap σ' (home (env σ' n)) = []) ->
  same_shown k ns σ σ'.
Proof.
  assert (L : forall σ n, path (env σ n) = [] /\ heap σ (home (env σ n)) = [] -> look σ n = []).
  { intros σ n [P H]. unfold look. now rewrite P, H. }
  induction k as [| k IH]; intros σ σ' E E'; split; auto;
    try (apply map_ext_in; intros n I; rewrite !L; auto).
  intros n w I F. rewrite L in F by auto. destruct w; [clear F | discriminate F].
  apply IH; intros m J; simpl; unfold write, update;
    [destruct (E n I) as [P _], (E m J) as [Q H] | destruct (E' n I) as [P _], (E' m J) as [Q H]];
    rewrite P; split; auto; now destruct (storage_eq_dec _ _).
Qed.

Example sharing_differs : differ_in Sharing [] [r; s]
  (nothing ++ [(r, Call clone [u]); (s, Same r)]) (nothing ++ [(r, Call clone [u]); (s, Call clone [u])]).
Proof.
  split.
  - intros C. destruct (C r s ltac:(simpl; tauto) ltac:(simpl; tauto)) as [D _].
    specialize (D eq_refl). vm_compute in D. discriminate D.
  - intros f. destruct f; intros N; try (destruct N; reflexivity); simpl agrees; try reflexivity.
    intros k. apply empty_shown; intros n I; simpl in I; intuition (subst; reflexivity).
Qed.

(** Memory that was given, and that no result or input of the graph shows. *)
Example given_differs : differ_in GivenMemory [x] [] [(u, Call succ_ [y])] [].
Proof. split; [intros C; discriminate (C 1 0) | all_others]. Qed.

Example history_differs : differ_in History [x] [] [(u, Call print [x])] [].
Proof. split; [discriminate | all_others]. Qed.

Example generator_differs : differ_in Generator [x] [] [(u, Call sample [])] [].
Proof. split; [discriminate | all_others]. Qed.

Example mode_differs : differ_in Mode [x] [] [(u, Call switch [])] [].
Proof. split; [discriminate | all_others]. Qed.

(** ** T10_exchange: two draws inside of a graph *)

Definition drawn_first : node := (t, Call sample []).
Definition drawn_second : node := (u, Call sample []).
Definition earlier : graph := [(q, Call succ [x])].
Definition later : graph := [(r, Call succ [t]); (s, Call plus [q; u])].

(** The stream is 0, 1, 2; in the other one, the first two have changed places. *)
Example stream_exchanged : exchanges (run earlier initial) drawn_first drawn_second [1; 0; 2].
Proof.
  refine (T10_streams nat (@app nat) (fun _ _ => 1) true sample sample [] [] [0] [1] [2] _ _ eq_refl
    eq_refl eq_refl eq_refl).
  - intros f vs [| a [|]] γ _ L; try discriminate. reflexivity.
  - intros f vs [| a [|]] γ γ' _ L; try discriminate. reflexivity.
Qed.

Example exchanged_outcome :
  same_outcome [x] [t; u; r; s] (run (earlier ++ drawn_first :: drawn_second :: later) initial)
    (run (drawn_second :: drawn_first :: later) (with_generator (run earlier initial) [1; 0; 2])).
Proof.
  apply (T10_exchange one [t; u; r; s] earlier drawn_first drawn_second later initial [1; 0; 2]);
    [reflexivity | now apply initial_arranged | reflexivity | exact stream_exchanged].
Qed.

(** From the same stream, the draws get other numbers. *)
Example not_exchanged :
  look (run (drawn_second :: drawn_first :: later) (run earlier initial)) t <>
  look (run (drawn_first :: drawn_second :: later) (run earlier initial)) t.
Proof. discriminate. Qed.

(** ** T10_sequence: [succ (succ x)] becomes [plus_two x], and then [succ (succ x)] of other names *)

Definition joined : rewrite := {|
  inputs := one; before := [];
  old := [(t, Call succ [x]); (r, Call succ [t])];
  new := [(r, Call plus_two [x])];
  after := [(s, Call clone [r])];
  outputs := [r; s]
|}.

Definition parted : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call plus_two [x])];
  new := [(u, Call succ [x]); (r, Call succ [u])];
  after := [(s, Call clone [r])];
  outputs := [r; s]
|}.

Example both_rewritten : rewrites one [r; s] initial (from joined) (to parted).
Proof.
  apply (Rewrites_more one [r; s] initial joined); try reflexivity;
    [apply equation_holds_at; equation_holds | parts_overlap |].
  apply (Rewrites_more one [r; s] initial parted); try reflexivity;
    [apply equation_holds_at; equation_holds | parts_overlap | constructor].
Qed.

Example both_outcome :
  same_outcome [x] [r; s] (run (from joined) initial) (run (to parted) initial).
Proof. apply (T10_sequence one); [now apply initial_arranged | exact both_rewritten]. Qed.
