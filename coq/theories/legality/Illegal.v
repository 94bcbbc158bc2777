(** * Illegal rewrites: no condition can be dropped

    Each is a rewrite whose equation holds and which meets every condition of [legal] but one; and it
    changes the outcome. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names.
From PyPM.legality Require Import Execution Legal Equation.

(** ** A small torch

    Tensors are lists of numbers, and a view is one cell, all but the first, or all of them.  There is
    one mode, under which [cast] doubles; the stream of random numbers is a list. *)

Definition succ : operator := Operator 0 Fresh [] false false false.
Definition plus_two : operator := Operator 1 Fresh [] false false false.
Definition clone : operator := Operator 2 Fresh [] false false false.
Definition succ_ : operator := Operator 3 (View 0) [0] false false false.
Definition tail : operator := Operator 4 (View 0) [] false false false.
Definition tail_copy : operator := Operator 5 Fresh [] false false false.
Definition sample : operator := Operator 6 Fresh [] false true false.
Definition print : operator := Operator 7 Fresh [] false false true.
Definition switch : operator := Operator 8 Fresh [] true false false.
Definition cast : operator := Operator 9 Fresh [] false false false.
Definition reshape : operator := Operator 10 (Maybe [0]) [] false false false.
Definition cast_twice : operator := Operator 11 Fresh [] false false false.
Definition zeros : operator := Operator 12 Fresh [] false false false.
Definition plus : operator := Operator 13 Fresh [] false false false.
Definition cell (i : nat) : operator := Operator (20 + i) (View 0) [] false false false.
Definition twice_next : operator := Operator 14 Fresh [] false false false.    (* [a; b]: [a+1; a+1] *)

Inductive part_of_list : Type := Whole | Tail | Cell (i : nat).

Definition first (vs : list (list nat)) : list nat := hd [] vs.
Definition head_cell (v : list nat) : list nat := [nth 0 v 0].
Definition doubled (m : bool) (v : list nat) : list nat := if m then map (Nat.mul 2) v else v.

Definition get_part (l : part_of_list) (v : list nat) : list nat :=
  match l with Whole => v | Tail => tl v | Cell i => [nth i v 0] end.
Definition put_part (l : part_of_list) (v w : list nat) : list nat :=
  match l with
  | Whole => w
  | Tail => firstn 1 v ++ w
  | Cell i => if Nat.ltb i (length v) then firstn i v ++ w ++ skipn (S i) v else v
  end.

Lemma put_part_length l v w : length (get_part l v) = length w -> length v = length (put_part l v w).
Proof.
  intros F. destruct l as [| | i]; [exact F | now destruct v; simpl in *; f_equal |].
  unfold put_part. destruct (Nat.ltb_spec i (length v)) as [L | L]; [| reflexivity].
  rewrite !app_length, firstn_length_le, skipn_length by lia. simpl in F. lia.
Qed.

#[local] Instance toy : Torch := {|
  value := list nat;
  mode := bool;
  generator := list nat;
  lens := part_of_list;
  get := get_part;
  put := put_part;
  fits v w := length v = length w;
  put_fits := put_part_length;
  result f c vs :=
    match symbol f with
    | 0 => map S (first vs)
    | 1 => map S (map S (first vs))
    | 2 | 10 => first vs
    | 5 => tl (first vs)
    | 6 => match seen_generator _ _ _ c with Some g => head_cell g | None => [] end
    | 9 => doubled (seen_mode _ _ _ c) (first vs)
    | 11 => doubled (seen_mode _ _ _ c) (doubled (seen_mode _ _ _ c) (first vs))
    | 12 => [0]
    | 14 => head_cell (map S (first vs)) ++ head_cell (map S (first vs))
    | 13 => map (fun ab => fst ab + snd ab) (combine (first vs) (first (tl vs)))
    | _ => []
    end;
  chosen _ _ _ := Some 0;
  part f _ _ := match symbol f with 4 => Tail | 20 => Cell 0 | 21 => Cell 1 | _ => Whole end;
  written _ _ vs _ := map S (first vs);
  next_mode _ c _ := negb (seen_mode _ _ _ c);
  next_generator _ c _ := match seen_generator _ _ _ c with Some g => tl g | None => [] end
|}.

(** What a rewrite shows that meets every condition but [c]. *)
Record needed (c : condition) (w : rewrite) : Prop := {
  needed_graph : is_graph w = true;
  needed_equation : equation w;
  needed_alone : refusals w = [c];
  needed_outcome : exists σ : state, arranged (inputs w) σ /\ parts_kept w σ /\
    ~ same_outcome (input_names w) (outputs w) (run (from w) σ) (run (to w) σ)
}.

(** A legal rewrite whose equation holds, and that [parts_kept] alone does not allow. *)
Record parts_needed (w : rewrite) : Prop := {
  parts_graph : is_graph w = true;
  parts_equation : equation w;
  parts_legal : legal w = true;
  parts_outcome : exists σ : state, arranged (inputs w) σ /\
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
  now_generator := [0; 1; 2];
  history := []
|}.

Definition one_storage : state := {|
  heap _ := [1; 2];
  env n := Tensor (Given 0 1) [];
  now_mode := true;
  now_generator := [0; 1; 2];
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

(** What the caller has of moved roots overlaps as before. *)
Ltac parts_overlap :=
  let I := fresh in let J := fresh in let E := fresh in
  let v := fresh in let v' := fresh in let u := fresh in
  intros ? ? I J; vm_compute in I, J;
  repeat match goal with
         | H : _ \/ _ |- _ => destruct H as [<- | H]
         | H : False |- _ => destruct H
         end;
  intros E; vm_compute in E; try discriminate E;
  intros v v' u; vm_compute; intros; subst;
  first [reflexivity | destruct v, u; try discriminate; reflexivity].

Ltac outcome_differs :=
  exists initial; split; [apply initial_arranged; reflexivity |]; split; [parts_overlap |];
  let R := fresh in let M := fresh in let H := fresh in
  intros [R _ M H _ _]; specialize (M 0 0); specialize (R 0); vm_compute in R, M, H;
  first [destruct R; discriminate | discriminate M | discriminate H].

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
  old := [(r, Call tail [x])];
  new := [(r, Call tail_copy [x])];
  after := [(u, Call succ_ [x]); (s, Call succ [r])];
  outputs := [s]
|}.

Theorem L15_view_of_written : needed WritesApart view_of_written.
Proof. split; [reflexivity | equation_holds | reflexivity | outcome_differs]. Qed.

(** The view is written: the caller's tensor is not any more. *)
Definition written_view : rewrite := {|
  inputs := one; before := [];
  old := [(r, Call tail [x])];
  new := [(r, Call tail_copy [x])];
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
  after := [(t, Call tail [r]); (u, Call succ_ [x]); (s, Call succ [t])];
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
  split; [reflexivity | equation_holds | reflexivity |]. exists one_storage. split; [| split].
  - intros n k [[= <- <-] | [[= <- <-] | []]]; now exists 1.
  - parts_overlap.
  - intros [C _ _ _ _ _]. specialize (C 0). vm_compute in C. now destruct C.
Qed.

(** ** What the caller sees *)

Ltac sharing_differs n m := exists initial; split; [now apply initial_arranged |];
  split; [parts_overlap |];
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
  old := [(r, Call tail [x])];
  new := [(r, Call tail_copy [x])];
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

(** Two outputs are one cell, and become two cells of one storage: signatures are the same. *)
Definition other_parts : rewrite := {|
  inputs := one; before := [];
  old := [(t, Call succ [x]); (r, Call (cell 0) [t]); (s, Call (cell 0) [t])];
  new := [(u, Call twice_next [x]); (r, Call (cell 0) [u]); (s, Call (cell 1) [u])];
  after := [];
  outputs := [r; s]
|}.

Theorem L23_other_parts : parts_needed other_parts.
Proof.
  split; [reflexivity | | reflexivity |].
  - intros m ρ S. vm_compute region in S.
    apply satisfied in S as [Et S]. apply satisfied in S as [Er S]. apply satisfied in S as [Es _].
    split; [| | intros a b J; each_of J].
    + intros n J. each_of J; cbn in *; unfold t, r, s, u in *; rewrite ?Er, ?Es, Et; reflexivity.
    + intros n J B. each_of J; vm_compute in B; discriminate.
  - exists initial. split; [now apply initial_arranged |]. intros [C _ _ _ _ _].
    destruct (C 1) as [_ W]. specialize (W r [9] ltac:(simpl; tauto) eq_refl). vm_compute in W.
    now destruct W.
Qed.

(** ** What is seen of generator and modes alone *)

(** Nothing is drawn later: only the place in the stream is another. *)
Definition last_draw_dropped : rewrite := {|
  inputs := one; before := [];
  old := [(t, Call sample []); (r, Call succ [x])];
  new := [(r, Call succ [x])];
  after := [];
  outputs := [r]
|}.

Theorem L24_last_draw_dropped : needed SameEffects last_draw_dropped.
Proof.
  split; [reflexivity | equation_holds | reflexivity |]. exists initial.
  split; [now apply initial_arranged |]. split; [parts_overlap |].
  intros [_ _ _ _ C _]. discriminate C.
Qed.

(** Nothing is computed later: only the mode that is left is another. *)
Definition mode_left : rewrite := {|
  inputs := one; before := [];
  old := [(u, Call switch []); (r, Call succ [x])];
  new := [(r, Call succ [x])];
  after := [];
  outputs := [r]
|}.

Theorem L25_mode_left : needed ModesKept mode_left.
Proof.
  split; [reflexivity | equation_holds | reflexivity |]. exists initial.
  split; [now apply initial_arranged |]. split; [parts_overlap |].
  intros [_ _ _ _ _ C]. discriminate C.
Qed.

(** ** For comparison, what is legal *)

(** [x] is written before the window and after it; a draw stands in between; the effect is had anew, on
    an equal value; and a view becomes another view of the same part. *)
Definition lawful : rewrite := {|
  inputs := one;
  before := [(10, Call succ_ [x])];
  old := [(t, Call succ [x]); (11, Call sample []); (u, Call print [t]); (r, Call succ [t]);
          (12, Call tail [x]); (s, Same 12)];
  new := [(13, Call clone [x]); (14, Call succ [13]); (11, Call sample []); (15, Call print [14]);
          (r, Call plus_two [x]); (s, Call tail [x])];
  after := [(q, Call succ_ [s]); (16, Call succ_ [r])];
  outputs := [q; r; 11; x]
|}.

Example lawful_legal : is_graph lawful = true /\ legal lawful = true.
Proof. split; reflexivity. Qed.

Example lawful_equation : equation lawful.
Proof. equation_holds. Qed.

Example lawful_parts : parts_kept lawful initial.
Proof. parts_overlap. Qed.
