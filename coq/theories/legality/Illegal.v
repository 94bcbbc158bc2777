(** * Illegal rewrites: no condition can be dropped

    Each is a rewrite whose equation holds and which meets every condition of [legal] but one; and it
    changes the outcome. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names.
From PyPM.legality Require Import Execution Legal Equation.

(** ** A small torch

    Tensors are lists of numbers, and a view is one cell or all of them.  There is one mode, under which
    [cast] doubles; the stream of random numbers is 0, 1, 2, ... *)

Definition succ : operator := Operator 0 Fresh [] false false false.
Definition plus_two : operator := Operator 1 Fresh [] false false false.
Definition clone : operator := Operator 2 Fresh [] false false false.
Definition succ_ : operator := Operator 3 (View 0) [0] false false false.
Definition cell : operator := Operator 4 (View 0) [] false false false.
Definition cell_copy : operator := Operator 5 Fresh [] false false false.
Definition sample : operator := Operator 6 Fresh [] false true false.
Definition print : operator := Operator 7 Fresh [] false false true.
Definition switch : operator := Operator 8 Fresh [] true false false.
Definition cast : operator := Operator 9 Fresh [] false false false.
Definition reshape : operator := Operator 10 (Maybe [0]) [] false false false.
Definition cast_twice : operator := Operator 11 Fresh [] false false false.
Definition zeros : operator := Operator 12 Fresh [] false false false.
Definition plus : operator := Operator 13 Fresh [] false false false.

Definition first (vs : list (list nat)) : list nat := hd [] vs.
Definition head_cell (v : list nat) : list nat := [nth 0 v 0].
Definition doubled (m : bool) (v : list nat) : list nat := if m then map (Nat.mul 2) v else v.

#[local] Instance toy : Torch := {|
  value := list nat;
  mode := bool;
  generator := nat;
  lens := option nat;
  get l v := match l with Some i => [nth i v 0] | None => v end;
  put l v w := match l with Some i => firstn i v ++ head_cell w ++ skipn (S i) v | None => w end;
  result f c vs :=
    match symbol f with
    | 0 => map S (first vs)
    | 1 => map S (map S (first vs))
    | 2 | 10 => first vs
    | 5 => head_cell (first vs)
    | 6 => match seen_generator _ _ _ c with Some g => [g] | None => [] end
    | 9 => doubled (seen_mode _ _ _ c) (first vs)
    | 11 => doubled (seen_mode _ _ _ c) (doubled (seen_mode _ _ _ c) (first vs))
    | 12 => [0]
    | 13 => map (fun ab => fst ab + snd ab) (combine (first vs) (first (tl vs)))
    | _ => []
    end;
  chosen _ _ _ := Some 0;
  part f _ _ := match symbol f with 4 => Some 0 | _ => None end;
  written _ _ vs _ := map S (first vs);
  next_mode _ c _ := negb (seen_mode _ _ _ c);
  next_generator _ c _ := match seen_generator _ _ _ c with Some g => S g | None => 0 end
|}.

(** What a rewrite shows that meets every condition but [c]. *)
Record needed (c : condition) (w : rewrite) : Prop := {
  needed_graph : is_graph w = true;
  needed_equation : equation w;
  needed_alone : refusals w = [c];
  needed_outcome : exists σ : state, arranged (inputs w) σ /\
    ~ same_outcome (input_names w) (outputs w) (run (from w) σ) (run (to w) σ)
}.

(** *** Names *)

Definition x : name := 0.
Definition y : name := 1.
Definition t : name := 2.
Definition u : name := 3.
Definition r : name := 4.
Definition s : name := 5.
Definition q : name := 6.

(** One input, [x], that is [[1; 2]]; or [x] and [y] in one storage. *)
Definition initial : state := {|
  heap _ := [1; 2];
  env n := Tensor (Given n 0) [];
  now_mode := true;
  now_generator := 0;
  history := []
|}.

Definition one_storage : state := {|
  heap _ := [1; 2];
  env n := Tensor (Given 0 0) [];
  now_mode := true;
  now_generator := 0;
  history := []
|}.

Lemma initial_arranged l : forallb (fun nk => Nat.eqb (fst nk) (snd nk)) l = true -> arranged l initial.
Proof.
  intros A n k I. rewrite forallb_forall in A. apply A in I. apply Nat.eqb_eq in I. simpl in I.
  subst. now exists 0.
Qed.

Lemma satisfied m (ρ : valuation) n d g :
  satisfies m ρ ((n, d) :: g) -> ρ n = pure_meaning m ρ d /\ satisfies m ρ g.
Proof.
  intros S. split; [apply S; now left | intros k e I; apply S; now right].
Qed.

(** One goal for each member of a concrete list. *)
Ltac each_of J :=
  vm_compute in J;
  repeat (let X := fresh in
          destruct J as [X | J]; [first [injection X as <- <- | subst] |]); try destruct J.

Ltac equation_holds :=
  let m := fresh "m" in let ρ := fresh "ρ" in let H := fresh "H" in let J := fresh "J" in
  intros m ρ H; vm_compute region in H;
  repeat match type of H with
         | satisfies _ _ (_ :: _) => let E := fresh "E" in apply satisfied in H as [E H]
         end;
  split; [ intros ? J; each_of J
         | intros ? J; each_of J;
           intros B; vm_compute in B; try discriminate; split; intros; reflexivity
         | intros ? ? J N; each_of J; try congruence ];
  cbn in *; unfold x, y, t, u, r, s, q in *;
  repeat match goal with E : ρ _ = _ |- _ => progress rewrite E end; reflexivity.

Ltac outcome_differs :=
  exists initial; split; [apply initial_arranged; reflexivity |];
  let R := fresh in let M := fresh in let H := fresh in
  intros [R _ M H _ _]; specialize (M 0 0); vm_compute in R, M, H;
  first [discriminate R | discriminate M | discriminate H].

(** The rewrites below have one input, [x], or two. *)
Definition one : list (name * nat) := [(x, 0)].
Definition two : list (name * nat) := [(x, 0); (y, 1)].

(** ** A value is read that is not there *)

(** [t] is used outside of the region. *)
Definition escape : rewrite := {|
  inputs := one; before := [];
  old := [(t, Call succ [x]); (r, Call succ [t])];
  new := [(r, Call plus_two [x])];
  after := [(s, Call succ [t])];
  outputs := [r; s]
|}.

Theorem L1_escape : needed NamesDefined escape.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** The second output is computed from the first one: a replacement that computes both at once would
    need its own result. *)
Definition cycle : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call succ [x]); (t, Call clone [r]); (s, Call succ [t])];
  new := [(u, Call plus [x; t]); (r, Call succ [x]); (s, Call succ [t]); (t, Call clone [r])];
  after := [];
  outputs := [r; s]
|}.

Theorem L2_cycle : needed NamesDefined cycle.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** ** Memory is written in the window *)

Definition written_between : rewrite := {|
  inputs := one; before := [];
  old := [(t, Call succ [x]); (u, Call succ_ [x]); (r, Call succ [t])];
  new := [(u, Call succ_ [x]); (r, Call plus_two [x])];
  after := [];
  outputs := [r]
|}.

Theorem L3_written_between : needed NothingWritten written_between.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** A region that writes, and a replacement that only computes. *)
Definition region_writes : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call succ_ [x])];
  new := [(r, Call clone [x])];
  after := [];
  outputs := []
|}.

Theorem L4_region_writes : needed NothingWritten region_writes.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

Definition replacement_writes : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call clone [x])];
  new := [(u, Call succ_ [x]); (r, Call clone [x])];
  after := [];
  outputs := []
|}.

Theorem L5_replacement_writes : needed NothingWritten replacement_writes.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** ** A mode changes in the window *)

Definition switched_between : rewrite := {|
  inputs := one; before := [];
  old := [(t, Call cast [x]); (u, Call switch []); (r, Call cast [t])];
  new := [(u, Call switch []); (r, Call cast_twice [x])];
  after := [];
  outputs := [r]
|}.

Theorem L6_switched_between : needed ModesKept switched_between.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

Definition region_switches : rewrite := {|
  inputs := one; before := [];
  old := [(u, Call switch []); (r, Call succ [x])];
  new := [(r, Call succ [x])];
  after := [(s, Call cast [r])];
  outputs := [s]
|}.

Theorem L7_region_switches : needed ModesKept region_switches.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** ** Draws and effects *)

(** Random numbers that nothing uses: those that are drawn later are others. *)
Definition draw_dropped : rewrite := {|
  inputs := one; before := [];
  old := [(t, Call sample []); (r, Call succ [x])];
  new := [(r, Call succ [x])];
  after := [(s, Call sample [])];
  outputs := [r; s]
|}.

Theorem L8_draw_dropped : needed SameEffects draw_dropped.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

Definition draw_added : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call succ [x])];
  new := [(u, Call sample []); (r, Call succ [x])];
  after := [(s, Call sample [])];
  outputs := [r; s]
|}.

Theorem L9_draw_added : needed SameEffects draw_added.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** Both draws stay, in another order. *)
Definition draws_exchanged : rewrite := {|
  inputs := one; before := [];
  old := [(t, Call sample []); (u, Call sample []); (r, Call succ [u])];
  new := [(u, Call sample []); (r, Call succ [u]); (t, Call sample [])];
  after := [];
  outputs := [r; t]
|}.

Theorem L10_draws_exchanged : needed SameEffects draws_exchanged.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

Definition effect_dropped : rewrite := {|
  inputs := one; before := [];
  old := [(t, Call succ [x]); (u, Call print [t]); (r, Call succ [t])];
  new := [(r, Call plus_two [x])];
  after := [];
  outputs := [r]
|}.

Theorem L11_effect_dropped : needed SameEffects effect_dropped.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

Definition effect_added : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call succ [x])];
  new := [(u, Call print [x]); (r, Call succ [x])];
  after := [];
  outputs := [r]
|}.

Theorem L12_effect_added : needed SameEffects effect_added.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** ** A later write *)

(** A copy of [x] becomes [x], and [x] is written. *)
Definition copy_of_written : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call clone [x])];
  new := [(r, Same x)];
  after := [(u, Call succ_ [x]); (s, Call succ [r])];
  outputs := [s]
|}.

Theorem L13_copy_of_written : needed WritesApart copy_of_written.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** The copy is written: now the caller's tensor is. *)
Definition written_copy : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call clone [x])];
  new := [(r, Same x)];
  after := [(u, Call succ_ [r]); (s, Call succ [r])];
  outputs := [s]
|}.

Theorem L14_written_copy : needed WritesApart written_copy.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** A view becomes a copy, and its base is written. *)
Definition view_of_written : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call cell [x])];
  new := [(r, Call cell_copy [x])];
  after := [(u, Call succ_ [x]); (s, Call succ [r])];
  outputs := [s]
|}.

Theorem L15_view_of_written : needed WritesApart view_of_written.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** The view is written: the caller's tensor is not any more. *)
Definition written_view : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call cell [x])];
  new := [(r, Call cell_copy [x])];
  after := [(u, Call succ_ [r]); (s, Call succ [u])];
  outputs := [s]
|}.

Theorem L16_written_view : needed WritesApart written_view.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** Memory that may be shared, and is. *)
Definition written_reshape : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call clone [x])];
  new := [(r, Call reshape [x])];
  after := [(u, Call succ_ [x]); (s, Call succ [r])];
  outputs := [s]
|}.

Theorem L17_written_reshape : needed WritesApart written_reshape.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** A later view of the root is read after the write. *)
Definition view_of_copy : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call clone [x])];
  new := [(r, Same x)];
  after := [(t, Call cell [r]); (u, Call succ_ [x]); (s, Call succ [t])];
  outputs := [s]
|}.

Theorem L18_view_of_copy : needed WritesApart view_of_copy.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** Two inputs that may be one tensor, and are. *)
Definition same_inputs : rewrite := {|
  inputs := [(x, 0); (y, 0)]; before := [];
  old := [(r, Call clone [x])];
  new := [(r, Same x)];
  after := [(u, Call succ_ [y]); (s, Call succ [r])];
  outputs := [s]
|}.

Theorem L19_same_inputs : needed WritesApart same_inputs.
Proof.
  split; [reflexivity | equation_holds | reflexivity |]. exists one_storage. split.
  - intros n k [[= <- <-] | [[= <- <-] | []]]; now exists 0.
  - intros [C _ _ _ _ _]. vm_compute in C. discriminate.
Qed.

(** ** What the caller sees *)

Ltac sharing_differs n m := exists initial; split; [now apply initial_arranged |];
  intros C; pose proof (same_sharing _ _ _ _ C n m ltac:(simpl; tauto) ltac:(simpl; tauto)) as S;
  vm_compute in S; destruct S as [S1 S2];
  first [discriminate (S1 eq_refl) | discriminate (S2 eq_refl)].

(** An output that shared nothing is the input. *)
Definition returned_input : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call clone [x])];
  new := [(r, Same x)];
  after := [];
  outputs := [r]
|}.

Theorem L20_returned_input : needed VisibleApart returned_input.
Proof. split; [reflexivity | equation_holds | reflexivity | sharing_differs x r]. Qed.

(** An output that was a view of the input is none. *)
Definition returned_view : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call cell [x])];
  new := [(r, Call cell_copy [x])];
  after := [];
  outputs := [r]
|}.

Theorem L21_returned_view : needed VisibleApart returned_view.
Proof. split; [reflexivity | equation_holds | reflexivity | sharing_differs x r]. Qed.

(** Two outputs become one. *)
Definition joined_outputs : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call succ [x]); (s, Call succ [x])];
  new := [(u, Call succ [x]); (r, Same u); (s, Same u)];
  after := [];
  outputs := [r; s]
|}.

Theorem L22_joined_outputs : needed VisibleApart joined_outputs.
Proof. split; [reflexivity | equation_holds | reflexivity | sharing_differs r s]. Qed.

(** ** For comparison, what is legal *)

(** [x] is written before the window and after it; a draw stands in between; the effect is had anew, on
    an equal value; and a view becomes another view of the same part. *)
Definition lawful : rewrite := {|
  inputs := one;
  before := [(10, Call succ_ [x])];
  old := [(t, Call succ [x]); (11, Call sample []); (u, Call print [t]); (r, Call succ [t]);
          (12, Call cell [x]); (s, Same 12)];
  new := [(13, Call clone [x]); (14, Call succ [13]); (11, Call sample []); (15, Call print [14]);
          (r, Call plus_two [x]); (s, Call cell [x])];
  after := [(q, Call succ_ [s]); (16, Call succ_ [r])];
  outputs := [q; r; 11; x]
|}.

Example lawful_legal : is_graph lawful = true /\ legal lawful = true.
Proof. split; reflexivity. Qed.

Example lawful_equation : equation lawful.
Proof. equation_holds. Qed.
